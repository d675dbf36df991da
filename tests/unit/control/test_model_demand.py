"""Who wants and uses which models, over all routers."""

from services.control.demand_metrics import families
from services.control.model_demand import ModelDemand, ModelUse, RouterDemand
from services.control.prometheus import render


def test_a_model_is_wanted_since_the_first_router_asked_until_the_last_has_it() -> None:
    demand = ModelDemand()
    demand.take("r1", RouterDemand(wanted=frozenset("m")), 10)
    demand.take("r2", RouterDemand(wanted=frozenset("mn")), 20)
    assert demand.wanted() == {"m": 10, "n": 20}
    demand.take("r1", RouterDemand(), 30)
    assert demand.wanted() == {"m": 10, "n": 20}
    demand.forget("r2", 40)
    assert demand.wanted() == {}


def test_who_waits_in_vain_is_known_and_no_longer_counts() -> None:
    demand = ModelDemand()
    demand.take("r1", RouterDemand(wanted=frozenset("m")), 10)
    demand.take("r2", RouterDemand(wanted=frozenset("n")), 10)
    assert demand.withdraw("m") == ("r1",)
    assert demand.wanted() == {"n": 10}


def test_the_latest_use_of_any_router_counts() -> None:
    demand = ModelDemand()
    for router, idle_ns, is_in_use in (("r1", 5, False), ("r2", 50, True)):
        use = ModelUse(model="m", is_in_use=is_in_use, idle_ns=idle_ns)
        demand.take(router, RouterDemand(uses=(use,)), 100)
    assert (demand.last_used_ns("m"), demand.last_used_ns("n")) == (95, 0)
    assert demand.is_in_use("m")
    demand.forget("r2", 110)
    assert not demand.is_in_use("m")


def test_waits_outlive_the_router_that_counted_them() -> None:
    demand = ModelDemand()
    demand.take("r1", RouterDemand(waits={"m": (2, 30)}), 10)
    demand.take("r1", RouterDemand(waits={"m": (3, 40)}), 20)
    demand.forget("r1", 30)
    demand.take("r2", RouterDemand(waits={"m": (1, 5)}), 40)
    assert demand.waits() == {"m": (4, 45)}


class Told:
    """Facts for the page."""

    loads = {"m": 3}  # noqa: RUF012
    evictions = {"n": 2}  # noqa: RUF012
    budget_bytes = 100
    resident_bytes = 60

    def waits(self) -> dict[str, tuple[int, int]]:
        return {"m": (4, 1_500_000_000)}


def test_the_page_tells_loads_evictions_and_waits() -> None:
    text = render(list(families(Told())))
    for line in (
        'nereid_model_demand_loads_total{model="m"} 3',
        'nereid_model_evictions_total{model="n"} 2',
        'nereid_model_waits_total{model="m"} 4',
        'nereid_model_wait_seconds_total{model="m"} 1.5',
        "nereid_model_memory_budget_bytes 100",
        "nereid_model_memory_resident_bytes 60",
    ):
        assert line in text
