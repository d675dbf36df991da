"""The rate limiter's decisions: who holds what, and who is next."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.errors import ConfigError
from services.core.model_config_placement import RateLimiter as RateLimiterConfig
from services.core.model_config_placement import RateLimiterResource
from services.core.rate_limits import ResourceAmount
from services.worker.rate_limiter import Limited, RateLimiter, Resource


def needs(priority: int = 0, **counts: int) -> RateLimiterConfig:
    """Return what an instance needs; a name with a capital is global."""
    resources = tuple(
        RateLimiterResource(name=name, is_global=name.isupper(), count=count)
        for name, count in counts.items()
    )
    return RateLimiterConfig(resources=resources, priority=priority)


def amount(name: str, count: int, device: int | None = None) -> ResourceAmount:
    return ResourceAmount(name=name, count=count, device=device)


def test_by_default_there_is_as_much_as_the_neediest_instance_needs() -> None:
    limiter: RateLimiter[str] = RateLimiter()
    limiter.add(needs(r1=4, r2=4))
    limiter.add(needs(r2=5, r3=10, r4=5))
    last = limiter.add(needs(r1=1, r3=7, r4=9))
    amounts = [limiter.amount(Resource(f"r{n}", is_global=False)) for n in "1234"]
    assert amounts == [4, 5, 10, 9]
    limiter.remove(last)
    assert limiter.amount(Resource("r4", is_global=False)) == 5


def test_amounts_are_told_for_each_device_or_for_one_and_of_a_global_one_anywhere() -> (
    None
):
    told = (amount("r1", 10), amount("r2", 5, 0), amount("r2", 8, 1), amount("R", 2, 7))
    for device, second in ((0, 5), (1, 8)):
        limiter: RateLimiter[str] = RateLimiter(told, device)
        assert limiter.amount(Resource("r1", is_global=False)) == 10
        assert limiter.amount(Resource("r2", is_global=False)) == second
        assert limiter.amount(Resource("R", is_global=True)) == 2


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        (amount("r", 3), 3),
        (amount("r", 9, 10), 0),  # of another device
        (amount("other", 9), 0),  # what is not told does not exist
    ],
)
def test_an_instance_that_could_never_execute_is_refused(
    told: ResourceAmount, limit: int
) -> None:
    limiter: RateLimiter[str] = RateLimiter((told,))
    with pytest.raises(ConfigError) as raised:
        limiter.add(needs(r=4))
    assert str(raised.value) == (
        f'Resource count for "r" is limited to {limit} which will prevent scheduling '
        "of one or more model instances, the minimum required count is 4"
    )
    assert limiter.amount(Resource("r", is_global=False)) == limit


def test_a_resource_is_either_global_or_of_a_device() -> None:
    limiter: RateLimiter[str] = RateLimiter()
    limiter.add(needs(R=1))
    resource = RateLimiterResource(name="R", is_global=False, count=1)
    with pytest.raises(ConfigError, match="both global and device-specific"):
        limiter.add(RateLimiterConfig(resources=(resource,)))


def test_who_finds_no_resource_waits_until_there_is_one() -> None:
    limiter: RateLimiter[str] = RateLimiter((amount("r", 4),))
    first, second = limiter.add(needs(r=4)), limiter.add(needs(r=2))
    assert limiter.ask(first, "a") == ("a",)
    assert limiter.ask(second, "b") == ()
    assert limiter.end(first, "a") == ("b",)


def test_who_fits_beside_the_others_need_not_wait() -> None:
    limiter: RateLimiter[str] = RateLimiter((amount("r", 6),))
    first, second = limiter.add(needs(r=4)), limiter.add(needs(r=2))
    assert limiter.ask(first, "a") == ("a",)
    assert limiter.ask(second, "b") == ("b",)


def test_one_release_may_let_several_go() -> None:
    limiter: RateLimiter[str] = RateLimiter((amount("r", 2),))
    big = limiter.add(needs(r=2))
    small = [limiter.add(needs(r=1)) for _ in range(2)]
    limiter.ask(big, "big")
    for number, instance in enumerate(small):
        limiter.ask(instance, f"small {number}")
    assert limiter.end(big, "big") == ("small 0", "small 1")


def test_who_needs_much_is_not_starved_by_those_who_need_little() -> None:
    limiter: RateLimiter[str] = RateLimiter((amount("r", 4),))
    big = limiter.add(needs(r=4))
    small = [limiter.add(needs(r=2)) for _ in range(3)]
    assert limiter.ask(small[0], "s0") == ("s0",)
    assert limiter.ask(big, "big") == ()
    assert limiter.ask(small[1], "s1") == ()  # it would fit, but comes behind
    assert limiter.end(small[0], "s0") == ("big",)


def test_nobody_waits_for_those_whose_resources_he_does_not_need() -> None:
    limiter: RateLimiter[str] = RateLimiter()
    one, two = limiter.add(needs(r=1)), limiter.add(needs(r=1))
    other = limiter.add(needs(s=1))
    limiter.ask(one, "one")
    assert limiter.ask(two, "two") == ()
    assert limiter.ask(other, "other") == ("other",)


def test_an_instance_executes_for_one_router_at_a_time() -> None:
    limiter: RateLimiter[str] = RateLimiter((amount("r", 9),))
    instance = limiter.add(needs(r=1))
    assert limiter.ask(instance, "router 1") == ("router 1",)
    assert limiter.ask(instance, "router 2") == ()
    assert limiter.ask(instance, "router 1") == ()  # for the turn after this one
    assert limiter.end(instance, "router 1") == ("router 2",)
    assert limiter.end(instance, "router 2") == ("router 1",)


def test_a_turn_that_was_not_used_costs_nothing() -> None:
    limiter: RateLimiter[str] = RateLimiter()
    first, second = limiter.add(needs(r=1)), limiter.add(needs(r=1))
    limiter.ask(first, "a")
    limiter.end(first, "a", cost=0)
    assert (first.spent, second.spent) == (0, 0)


def test_who_leaves_gives_back_what_it_holds_and_waits_no_more() -> None:
    limiter: RateLimiter[str] = RateLimiter()
    first, second = limiter.add(needs(r=1)), limiter.add(needs(r=1))
    limiter.ask(first, "a")
    limiter.ask(second, "b")
    limiter.ask(second, "c")
    assert limiter.leave(second, "b") == ()
    assert limiter.leave(first, "a") == ("c",)


def turns(limiter: RateLimiter[str], rounds: int, *names: str) -> Counter[str]:
    """Let those who hold a turn end it, and want the next one before they do."""
    held = [name for name in names if instance(limiter, name).holder == name]
    counted: Counter[str] = Counter()
    for _ in range(rounds):
        name = held.pop(0)
        counted[name] += 1
        held += limiter.ask(instance(limiter, name), name)
        held += limiter.end(instance(limiter, name), name)
    return counted


def instance(limiter: RateLimiter[str], name: str) -> Limited[str]:
    return limiter._instances[int(name)]


@pytest.mark.parametrize("priority", [1, 2, 3])
def test_priority_n_has_one_nth_of_the_turns(priority: int) -> None:
    limiter: RateLimiter[str] = RateLimiter()
    for each in (0, priority):  # 0 reads as 1
        limiter.add(needs(each, r=1))
    for name in "01":
        limiter.ask(instance(limiter, name), name)
    counted = turns(limiter, 40 * (priority + 1), "0", "1")
    assert counted["0"] == pytest.approx(priority * counted["1"], abs=priority)


def test_who_was_idle_has_not_saved_up_turns() -> None:
    limiter: RateLimiter[str] = RateLimiter()
    for _ in range(2):
        limiter.add(needs(r=1))
    limiter.ask(instance(limiter, "0"), "0")
    assert turns(limiter, 1000, "0") == {"0": 1000}
    limiter.ask(instance(limiter, "1"), "1")
    counted = turns(limiter, 100, "0", "1")
    assert counted["0"] == pytest.approx(50, abs=1)


COUNTS = st.dictionaries(
    st.sampled_from(["r", "s", "T"]), st.integers(0, 4), min_size=1
)


@given(priorities=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_shares_are_right_for_any_number_of_instances(priorities: list[int]) -> None:
    limiter: RateLimiter[str] = RateLimiter()
    names = [str(number) for number in range(len(priorities))]
    for name, priority in zip(names, priorities, strict=True):
        limiter.add(needs(priority, r=1))
        limiter.ask(instance(limiter, name), name)
    counted = turns(limiter, 200, *names)
    costs = [counted[n] * max(p, 1) for n, p in zip(names, priorities, strict=True)]
    assert max(costs) - min(costs) <= 2 * max(4, *priorities)


@settings(max_examples=200)
@given(data=st.data())
def test_resources_are_never_overdrawn_and_nobody_starves(data: st.DataObject) -> None:
    configs = data.draw(st.lists(COUNTS, min_size=1, max_size=5))
    limiter: RateLimiter[tuple[int, int]] = RateLimiter()
    instances = [
        limiter.add(needs(data.draw(st.integers(0, 4)), **each)) for each in configs
    ]
    waiting: dict[tuple[int, int], int] = {}
    holding: list[tuple[int, int]] = []

    def granted(claims: tuple[tuple[int, int], ...]) -> None:
        for claim in claims:
            del waiting[claim]
            holding.append(claim)
        used: Counter[Resource] = Counter()
        for number, _ in holding:
            used.update(instances[number].needs)
        assert all(n <= limiter.amount(resource) for resource, n in used.items())
        assert len({number for number, _ in holding}) == len(holding)

    for ended in range(data.draw(st.integers(0, 60))):
        number, router = divmod(data.draw(st.integers(0, 2 * len(instances) - 1)), 2)
        claim = (number, router)
        waiting.setdefault(claim, ended)
        granted(limiter.ask(instances[claim[0]], claim))
        if bool(holding) and data.draw(st.booleans()):
            over = holding.pop(data.draw(st.integers(0, len(holding) - 1)))
            granted(limiter.end(instances[over[0]], over))
    # Without newcomers everyone has a turn.
    while holding:
        over = holding.pop(0)
        granted(limiter.end(instances[over[0]], over))
    assert not waiting
