"""Which models are loaded and evicted so that a memory budget holds."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.control.memory_budget import Decision, MemoryBudget, Resident, Want

PATIENCE_NS = 1000
BUDGET = MemoryBudget(most_bytes=100, patience_ns=PATIENCE_NS)


def resident(model: str, size: int = 40, **fields: object) -> Resident:
    return Resident(model=model, size_bytes=size, **fields)  # type: ignore[arg-type]


def want(model: str = "new", size: int = 40, since: int = 0) -> Want:
    return Want(model=model, size_bytes=size, since_ns=since)


def decide(*residents: Resident, wants: list[Want], now: int = 0) -> Decision:
    return BUDGET.decide(residents, wants, now)


def test_what_fits_is_loaded() -> None:
    assert decide(resident("a"), wants=[want(size=60)]) == Decision(load=("new",))


def test_the_model_that_was_used_longest_ago_goes_and_the_load_waits_for_it() -> None:
    old, newer = resident("b", last_used_ns=1), resident("a", last_used_ns=2)
    assert decide(old, newer, wants=[want()]) == Decision(evict=("b",))
    leaving = dataclasses.replace(old, is_leaving=True)
    assert decide(leaving, newer, wants=[want()]) == Decision()
    assert decide(newer, wants=[want()]) == Decision(load=("new",))


def test_no_more_go_than_must() -> None:
    small = [resident(name, 25, last_used_ns=i) for i, name in enumerate("abcd")]
    assert decide(*small, wants=[want(size=30)]).evict == ("a", "b")


@pytest.mark.parametrize("state", ["is_pinned", "is_in_use"])
def test_what_must_stay_stays_though_it_is_the_oldest(state: str) -> None:
    stays = resident("a", **{state: True})
    assert decide(stays, resident("b", last_used_ns=9), wants=[want()]).evict == ("b",)
    decision = decide(stays, resident("b", is_in_use=True), wants=[want()])
    assert decision == Decision()


def test_nobody_goes_in_vain() -> None:
    busy = resident("a", 70, is_in_use=True)
    assert decide(busy, resident("b", 10), wants=[want()]) == Decision()


def test_who_finds_no_room_in_time_is_told_why() -> None:
    busy = [resident("a", is_in_use=True), resident("b", is_in_use=True)]
    assert decide(*busy, wants=[want()], now=PATIENCE_NS - 1) == Decision()
    assert decide(*busy, wants=[want()], now=PATIENCE_NS).refuse == {
        "new": "model 'new' takes 40 bytes, and models in use leave no room for it in"
        " the memory budget of 100 bytes"
    }


@pytest.mark.parametrize(
    ("residents", "size", "pinned"),
    [
        ((), 101, ""),
        (
            (resident("a", is_pinned=True),),
            61,
            ", of which pinned models take 40",
        ),
    ],
)
def test_what_can_never_fit_is_refused_at_once(
    residents: tuple[Resident, ...], size: int, pinned: str
) -> None:
    assert decide(*residents, wants=[want(size=size)]).refuse == {
        "new": f"model 'new' takes {size} bytes, and the memory budget is 100 bytes"
        f"{pinned}"
    }


def test_a_small_model_does_not_overtake_a_large_one() -> None:
    busy = resident("busy", 60, is_in_use=True)
    wants = [want("small", 10, since=2), want("large", 90, since=1)]
    assert decide(busy, wants=wants) == Decision()
    assert decide(busy, wants=wants, now=PATIENCE_NS + 1).load == ("small",)


def test_what_turned_out_larger_than_expected_makes_others_go() -> None:
    larger = resident("larger", 90, is_in_use=True, last_used_ns=1)
    assert decide(larger, resident("a", 20), wants=[]).evict == ("a",)
    # Even if that is not enough: what is over is over.
    assert decide(resident("x", 99, is_in_use=True), resident("a", 5), wants=[]) == (
        Decision(evict=("a",))
    )


def test_without_a_budget_everything_fits() -> None:
    unbounded = MemoryBudget(most_bytes=0, patience_ns=1)
    wants = [want("b", 10**15, since=2), want("a", since=1)]
    assert unbounded.decide([resident("x")], wants, 0).load == ("a", "b")


sizes = st.integers(1, 130)
worlds = st.lists(
    st.builds(
        Resident,
        model=st.integers(0, 30).map(str),
        size_bytes=sizes,
        last_used_ns=st.integers(0, 9),
        is_pinned=st.booleans(),
        is_in_use=st.booleans(),
        is_leaving=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: each.model,
)
wishes = st.lists(
    st.builds(
        Want,
        model=st.integers(31, 50).map(str),
        size_bytes=sizes,
        since_ns=st.integers(0, 2 * PATIENCE_NS),
    ),
    max_size=5,
    unique_by=lambda each: each.model,
)


@given(residents=worlds, wants=wishes, now=st.integers(0, 3 * PATIENCE_NS))
def test_whatever_the_world_the_rules_hold(
    residents: list[Resident], wants: list[Want], now: int
) -> None:
    decision = BUDGET.decide(residents, wants, now)
    by_model = {each.model: each for each in residents}
    sizes_wanted = {each.model: each.size_bytes for each in wants}
    assert all(by_model[model].may_go for model in decision.evict)
    assert len(set(decision.evict)) == len(decision.evict)
    loaded = sum(sizes_wanted[model] for model in decision.load)
    if decision.load:
        assert sum(each.size_bytes for each in residents) + loaded <= BUDGET.most_bytes
    assert not set(decision.load) & decision.refuse.keys()


@given(
    sizes_of=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 60), min_size=1),
    pinned=st.sampled_from("abcdef"),
    events=st.lists(
        st.tuples(
            st.sampled_from(["ask", "answer", "unloaded", "time"]),
            st.sampled_from("abcdef"),
        ),
        max_size=60,
    ),
)
def test_over_a_whole_life_the_budget_is_never_exceeded(
    sizes_of: dict[str, int], pinned: str, events: list[tuple[str, str]]
) -> None:
    present: dict[str, Resident] = {}
    waiting: dict[str, int] = {}
    now = 0
    for what, model in events:
        now += 100
        if model not in sizes_of:
            continue
        here = present.get(model)
        match what:
            case "ask" if here is None:
                waiting.setdefault(model, now)
            case "ask" if here is not None and not here.is_leaving:
                present[model] = dataclasses.replace(
                    here, is_in_use=True, last_used_ns=now
                )
            case "answer" if here is not None:
                present[model] = dataclasses.replace(here, is_in_use=False)
            case "unloaded" if here is not None and here.is_leaving:
                del present[model]
        wants = [
            Want(model=each, size_bytes=sizes_of[each], since_ns=since)
            for each, since in waiting.items()
            if each not in present
        ]
        decision = BUDGET.decide(tuple(present.values()), wants, now)
        for each in decision.evict:
            assert each != pinned
            assert not present[each].is_in_use
            present[each] = dataclasses.replace(present[each], is_leaving=True)
        for each in decision.load:
            del waiting[each]
            present[each] = Resident(
                model=each,
                size_bytes=sizes_of[each],
                last_used_ns=now,
                is_pinned=each == pinned,
                is_in_use=True,
            )
        for each in decision.refuse:
            del waiting[each]
        assert sum(each.size_bytes for each in present.values()) <= BUDGET.most_bytes
