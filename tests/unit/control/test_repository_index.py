"""The repository index, in Triton's form."""

from services.control.repository import ModelFolder, Survey
from services.control.repository_index import IndexEntry, repository_index
from services.control.route_table import VersionRoute
from services.core.lifecycle import ModelState


def found(*names: str, duplicates: str = "") -> Survey:
    return Survey(
        models={name: ModelFolder(name=name, directory=f"/r/{name}") for name in names},
        duplicates=frozenset(duplicates.split()),
    )


def route(
    model: str, version: int, state: ModelState, reason: str = ""
) -> VersionRoute:
    return VersionRoute(model=model, version=version, state=state, reason=reason)


def test_a_model_that_was_never_loaded_has_only_a_name() -> None:
    assert repository_index(found("b", "a"), (), {}) == [
        IndexEntry(name="a"),
        IndexEntry(name="b"),
    ]


def test_every_known_version_has_a_line() -> None:
    routes = (
        route("m", 1, ModelState.UNAVAILABLE, "unloaded"),
        route("m", 3, ModelState.READY),
    )
    assert repository_index(found("m"), routes, {}) == [
        IndexEntry(name="m", version="1", state="UNAVAILABLE", reason="unloaded"),
        IndexEntry(name="m", version="3", state="READY"),
    ]


def test_only_ready_versions_if_that_is_asked() -> None:
    routes = (route("m", 1, ModelState.LOADING), route("m", 3, ModelState.READY))
    assert repository_index(found("m", "n"), routes, {}, only_ready=True) == [
        IndexEntry(name="m", version="3", state="READY")
    ]


def test_a_double_name_and_a_bad_configuration_are_reasons() -> None:
    index = repository_index(found("bad", duplicates="two"), (), {"bad": "line 3"})
    assert index == [
        IndexEntry(name="bad", state="UNAVAILABLE", reason="line 3"),
        IndexEntry(
            name="two",
            state="UNAVAILABLE",
            reason="model appears in two or more repositories",
        ),
    ]


def test_a_model_that_serves_is_listed_though_its_folder_is_gone() -> None:
    assert repository_index(found(), (route("m", 1, ModelState.READY),), {}) == [
        IndexEntry(name="m", version="1", state="READY")
    ]


def test_a_model_known_to_have_no_version_has_no_line() -> None:
    assert repository_index(found("m"), (), {}, without_version={"m"}) == []
