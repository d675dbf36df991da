import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.control.version_policy import (
    require_versions,
    served_versions,
    versions_in,
)
from services.core.errors import ConfigError
from services.core.model_config import (
    AllVersions,
    LatestVersions,
    SpecificVersions,
    VersionPolicy,
)


@pytest.mark.parametrize(
    "name",
    ["0", "01", "-1", "+1", "1a", " 1", "v1", "", "1.0", "²", "\u0661", str(2**63)],
)
def test_a_folder_that_is_no_positive_number_is_no_version(name: str) -> None:
    assert versions_in([name]) == ()


def test_versions_are_numbers_not_text() -> None:
    assert versions_in(["10", "9", "labels", str(2**63 - 1)]) == (9, 10, 2**63 - 1)


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        (LatestVersions(), (10,)),
        (LatestVersions(count=2), (3, 10)),
        (LatestVersions(count=9), (1, 3, 10)),
        (AllVersions(), (1, 3, 10)),
        (SpecificVersions(versions=(10, 1, 7)), (1, 10)),
        (SpecificVersions(versions=()), ()),
    ],
)
def test_a_policy_chooses_among_the_versions(
    policy: VersionPolicy, served: tuple[int, ...]
) -> None:
    assert served_versions(policy, [10, 1, 3]) == served


@pytest.mark.parametrize(
    ("policy", "available"),
    [
        (LatestVersions(), []),
        (AllVersions(), []),
        (SpecificVersions(versions=(2,)), [1]),
    ],
)
def test_no_version_is_an_error_in_tritons_words(
    policy: VersionPolicy, available: list[int]
) -> None:
    with pytest.raises(ConfigError) as caught:
        require_versions("bad_noversion", policy, available)
    assert str(caught.value) == (
        "at least one version must be available under the version policy of model "
        "'bad_noversion'"
    )


@given(
    available=st.sets(st.integers(1, 20)),
    count=st.integers(1, 10),
)
def test_nothing_newer_than_a_served_version_is_left_out(
    available: set[int], count: int
) -> None:
    served = served_versions(LatestVersions(count=count), available)
    assert len(served) == min(count, len(available))
    assert all(version <= min(served) for version in available - set(served))
