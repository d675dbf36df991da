from services.router.first_instances import FirstInstances


def test_what_has_its_instances_is_not_waited_for() -> None:
    called: list[str] = []
    FirstInstances(lambda _: False).when_there({1, 2}, lambda: called.append("now"))
    assert called == ["now"]


def test_each_new_route_is_waited_for_once() -> None:
    missing = {1, 2}
    called: list[str] = []
    first = FirstInstances(missing.__contains__)
    first.when_there({1, 2, 3}, lambda: called.append("then"))
    missing.remove(1)
    first.look()
    missing.add(1)  # it was lost again: another matter
    assert called == []
    missing.remove(2)
    first.look()
    first.look()
    assert called == ["then"]


def test_one_that_waits_does_not_hold_up_another() -> None:
    called: list[str] = []
    first = FirstInstances({1}.__contains__)
    first.when_there({1}, lambda: called.append("first"))
    first.when_there({2}, lambda: called.append("second"))
    assert called == ["second"]
