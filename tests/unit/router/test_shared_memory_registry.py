"""Regions of shared memory: who may register what, and what requests may use."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)
from services.core.shared_memory_region import SharedMemoryRegion
from services.router.shared_memory_registry import SharedMemoryRegistry

SIZES = {"/data": 256, "/empty": 0}


def place(
    key: str = "/data", offset: int = 0, byte_size: int = 256
) -> SharedMemoryRegion:
    return SharedMemoryRegion(key=key, offset=offset, byte_size=byte_size)


def registry() -> SharedMemoryRegistry:
    return SharedMemoryRegistry(is_allowed=True, size_of=SIZES.get)


def test_a_part_of_a_region_is_found_where_it_is() -> None:
    regions = registry()
    regions.register("r", place(offset=16, byte_size=64))
    assert regions.resolve("r", 8, 56) == place(offset=24, byte_size=56)


@pytest.mark.parametrize(
    ("offset", "byte_size", "message"),
    [
        (64, 0, "Invalid offset for"),
        (-1, 4, "Invalid offset for"),
        (2**63, 4, "Invalid offset for"),
        (0, 65, r"Invalid offset \+ byte size for"),
        (63, 2, r"Invalid offset \+ byte size for"),
        (1, 2**64 - 1, r"Invalid offset \+ byte size for"),
        (0, -1, r"Invalid offset \+ byte size for"),
    ],
)
def test_what_lies_outside_of_a_region_is_refused(
    offset: int, byte_size: int, message: str
) -> None:
    regions = registry()
    regions.register("r", place(byte_size=64))
    with pytest.raises(InvalidRequestError, match=message):
        regions.resolve("r", offset, byte_size)


@given(st.integers(-300, 600), st.integers(-300, 600))
def test_no_part_reaches_out_of_its_region(offset: int, byte_size: int) -> None:
    regions = registry()
    regions.register("r", place(offset=100, byte_size=100))
    try:
        found = regions.resolve("r", offset, byte_size)
    except InvalidRequestError:
        assert not (offset >= 0 and byte_size >= 0 and offset + byte_size <= 100) or (
            offset == 100
        )
    else:
        assert found.byte_size == byte_size
        assert 100 <= found.offset <= found.offset + byte_size <= 200


def test_a_name_is_registered_once_until_it_is_unregistered() -> None:
    regions = registry()
    regions.register("r", place())
    with pytest.raises(AlreadyExistsError, match="region 'r' already in manager"):
        regions.register("r", place())
    regions.unregister("r")
    regions.register("r", place())


def test_all_are_unregistered_at_once() -> None:
    regions = registry()
    for name in ("b", "a"):
        regions.register(name, place())
    assert [one.name for one in regions.status("")] == ["a", "b"]
    regions.unregister("")
    assert regions.status("") == ()
    with pytest.raises(ModelNotFoundError, match="shared memory region: 'a'"):
        regions.resolve("a", 0, 1)


def test_the_status_of_one_region_and_of_none() -> None:
    regions = registry()
    regions.register("r", place())
    assert [one.place for one in regions.status("r")] == [place()]
    with pytest.raises(ModelNotFoundError, match="system shared memory region: 'x'"):
        regions.status("x")


def test_unregistering_what_is_not_there_is_no_error() -> None:
    registry().unregister("x")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (place(byte_size=257), "region 'r': invalid args"),
        (place(offset=1), "region 'r': invalid args"),
        (place(offset=2**64 - 1, byte_size=2), "region 'r': invalid args"),
        (place(key=""), "invalid shm key ''"),
        (place(key="//"), "invalid shm key '//'"),
        (place(key="/triton_python_backend_shm_region_7"), "the reserved prefix"),
    ],
)
def test_what_cannot_be_a_region_is_refused(
    where: SharedMemoryRegion, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        registry().register("r", where)


def test_an_object_that_is_not_there_is_an_error() -> None:
    with pytest.raises(
        InternalError, match="Unable to open shared memory region: '/x'"
    ):
        registry().register("r", place(key="/x"))


def test_nothing_is_shared_unless_the_operator_wants_it() -> None:
    regions = SharedMemoryRegistry(size_of=SIZES.get)
    with pytest.raises(UnsupportedError, match="'--allow-client-shm=true' to enable"):
        regions.register("r", place())
    with pytest.raises(UnsupportedError):
        regions.unregister("")
    assert regions.status("") == ()


class Request:
    """A request that uses regions."""

    def __init__(self) -> None:
        self.open = True


def names(regions: SharedMemoryRegistry) -> list[str]:
    return [region.name for region in regions.status("")]


def test_a_region_in_use_is_unregistered_when_its_last_user_is_gone() -> None:
    regions = registry()
    for name in ("a", "b", "c"):
        regions.register(name, place())
    first, second = Request(), Request()
    regions.hold(("a", "b"), first)
    regions.hold(("a",), second)
    regions.unregister("a")
    regions.unregister("")
    assert names(regions) == ["a", "b"]
    del first
    assert names(regions) == ["a"]
    # Until then it is as it was: it can be used, and its name is taken.
    assert regions.resolve("a", 0, 8) == place(byte_size=8)
    with pytest.raises(AlreadyExistsError, match="'a' already in manager"):
        regions.register("a", place())
    del second
    assert names(regions) == []
    regions.register("a", place())
    assert names(regions) == ["a"]


@pytest.mark.parametrize("look", ["register", "status", "resolve"])
def test_a_request_that_is_answered_holds_no_region_though_it_lives_on(
    look: str,
) -> None:
    regions = registry()
    regions.register("a", place())
    request = Request()
    regions.hold(("a",), request)
    regions.unregister("a")
    request.open = False
    match look:
        case "register":
            regions.register("a", place())
        case "status":
            assert names(regions) == []
        case _:
            with pytest.raises(ModelNotFoundError):
                regions.resolve("a", 0, 8)


def test_a_region_that_nobody_unregisters_outlives_its_users() -> None:
    regions = registry()
    regions.register("a", place())
    user = Request()
    regions.hold(("a",), user)
    del user
    assert names(regions) == ["a"]
    regions.unregister("a")
    assert names(regions) == []


HANDLE = bytes(range(64))


def gpu_registry() -> SharedMemoryRegistry:
    return SharedMemoryRegistry(
        is_allowed=True, size_of=SIZES.get, has_gpu=lambda index: index == 1
    )


def test_memory_on_a_gpu_is_found_by_its_handle() -> None:
    regions = gpu_registry()
    regions.register_cuda("g", handle=HANDLE, device=1, byte_size=100)
    found = regions.resolve("g", 8, 92)
    assert (found.offset, found.byte_size, found.device) == (8, 92, 1)
    assert base64.b64decode(found.key) == HANDLE
    assert SharedMemoryRegion.decode(found.encode()) == found
    with pytest.raises(InvalidRequestError, match=r"Invalid offset \+ byte size"):
        regions.resolve("g", 8, 93)


@pytest.mark.parametrize(("handle", "device"), [(HANDLE, 0), (HANDLE[1:], 1)])
def test_what_no_worker_could_open_is_refused(handle: bytes, device: int) -> None:
    message = "^failed to register shared memory region: invalid args$"
    with pytest.raises(InvalidRequestError, match=message):
        gpu_registry().register_cuda("g", handle=handle, device=device, byte_size=1)


def test_the_two_kinds_share_their_names_and_nothing_else() -> None:
    regions = gpu_registry()
    regions.register("s", place())
    regions.register_cuda("g", handle=HANDLE, device=1, byte_size=100)
    with pytest.raises(AlreadyExistsError, match="'s' already in manager"):
        regions.register_cuda("s", handle=HANDLE, device=1, byte_size=100)
    with pytest.raises(ModelNotFoundError, match="'g' is registered as CUDA shared"):
        regions.status("g")
    with pytest.raises(ModelNotFoundError, match="registered as system shared memory"):
        regions.status("s", is_cuda=True)
    with pytest.raises(ModelNotFoundError, match="find cuda shared memory region: 'x'"):
        regions.status("x", is_cuda=True)
    regions.unregister("s", is_cuda=True)
    regions.unregister("g")
    assert names(regions) == ["s"]
    assert [one.name for one in regions.status("", is_cuda=True)] == ["g"]
    regions.unregister("", is_cuda=True)
    assert regions.status("", is_cuda=True) == ()
    assert names(regions) == ["s"]
