"""When freed memory is given back."""

from services.core.memory_return import MemoryReturn, resident_bytes, trim

MIB = 1 << 20
SECOND = 1_000_000_000


class Process:
    """A process whose memory the test says."""

    def __init__(self) -> None:
        self.resident = 100 * MIB
        self.needed = 100 * MIB
        self.trims = 0

    def trim(self) -> None:
        self.trims += 1
        self.resident = self.needed

    def returner(self) -> MemoryReturn:
        return MemoryReturn(resident=lambda: self.resident, trim_memory=self.trim)


def test_much_that_was_freed_is_given_back_once() -> None:
    process = Process()
    returner = process.returner()
    process.resident = 800 * MIB
    returner.tick(10 * SECOND)
    assert process.resident == 100 * MIB
    for second in range(20, 30):
        returner.tick(second * SECOND)
    assert process.trims == 1


def test_the_usual_ups_and_downs_are_left_alone() -> None:
    process = Process()
    returner = process.returner()
    process.resident = 228 * MIB
    returner.tick(10 * SECOND)
    assert process.trims == 0


def test_what_is_in_use_for_a_while_is_given_back_later() -> None:
    process = Process()
    returner = process.returner()
    process.resident = process.needed = 800 * MIB
    returner.tick(10 * SECOND)
    assert process.trims == 1
    process.needed = 100 * MIB
    for second in range(11, 20):
        returner.tick(second * SECOND)
    assert process.resident == 100 * MIB


def test_what_stays_in_use_is_tried_less_and_less_and_then_left_alone() -> None:
    process = Process()
    returner = process.returner()
    process.resident = process.needed = 800 * MIB
    for second in range(10, 1000):
        returner.tick(second * SECOND)
    assert process.trims == 5


def test_it_looks_seldom() -> None:
    process = Process()
    returner = process.returner()
    returner.tick(10 * SECOND)
    process.resident = 800 * MIB
    returner.tick(11 * SECOND)
    assert process.trims == 0
    returner.tick(12 * SECOND)
    assert process.trims == 1


def test_a_real_process_gives_back_what_it_freed() -> None:
    trim()  # what other tests have freed would be used again, and nothing would grow
    before = resident_bytes()
    kept = [bytes(60_000) for _ in range(4000)]
    last = bytes(60_000)
    assert resident_bytes() > before + 150 * MIB
    del kept
    trim()
    assert resident_bytes() < before + 100 * MIB
    assert last
