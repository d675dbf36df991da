"""Clients that ask the adder all the time, and what each of them was told."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

CLIENTS: Final = 4
# So many clients with so long a pause are some 200 requests a second.
PAUSE_S: Final = 0.02
_TIMEOUT_S: Final = 30.0


def ask(client: Any, model: str = "adder", version: str = "") -> int:  # noqa: ANN401
    """Return the addend of whatever answered.

    Raises:
        InferenceServerException: nothing did.
    """
    tensor = triton.InferInput("X", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
    result = client.infer(
        model, [tensor], model_version=version, client_timeout=_TIMEOUT_S
    )
    return int(result.as_numpy("Y")[0, 0])


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What the clients were told.

    Attributes:
        answers: Of each client, in order.
        errors: What went wrong, of all clients.
    """

    answers: list[list[int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _over: threading.Event = field(default_factory=threading.Event)

    def count(self) -> int:
        """Return how many requests were answered."""
        return sum(map(len, self.answers))

    def wait_for(self, more: int, addend: int | None = None) -> None:
        """Return once so many more answers came, the last of each client's right.

        Raises:
            AssertionError: they did not come.
        """
        with self._news:
            wanted = self.count() + more

            def is_there() -> bool:
                is_flipped = addend is None or all(
                    each[-1:] == [addend] for each in self.answers
                )
                return bool(self.errors) or (self.count() >= wanted and is_flipped)

            if not self._news.wait_for(is_there, _TIMEOUT_S):
                raise AssertionError(f"no {more} answers of {addend}")
        assert self.errors == []

    def flips(self) -> list[list[int]]:
        """Return of each client the answers that differ from the one before."""
        return [
            [each for i, each in enumerate(told) if i == 0 or told[i - 1] != each]
            for told in self.answers
        ]

    def run(self, port: int) -> None:
        """Ask until the end; in a thread of its own."""
        told: list[int] = []
        with self._news:
            self.answers.append(told)
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            while not self._over.wait(PAUSE_S):
                try:
                    answer = ask(client)
                except InferenceServerException as error:
                    with self._news:
                        self.errors.append(str(error))
                        self._news.notify_all()
                    continue
                with self._news:
                    told.append(answer)
                    self._news.notify_all()

    def end(self) -> None:
        """Let each client finish its request."""
        self._over.set()


@contextlib.contextmanager
def traffic(port: int) -> Iterator[Traffic]:
    """Ask the adder as long as the block lasts."""
    flowing = Traffic()
    threads = [
        threading.Thread(target=flowing.run, args=(port,)) for _ in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        flowing.wait_for(2 * CLIENTS)
        yield flowing
    finally:
        flowing.end()
        for thread in threads:
            thread.join()
