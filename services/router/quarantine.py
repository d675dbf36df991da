"""Requests that brought down a worker, remembered by their content. Pure."""

from services.router.request_content import content_digest


class Quarantine:
    """Contents that are refused for a while; the newest ``most`` of them."""

    __slots__ = ("_duration_ns", "_most", "_until")

    def __init__(self, *, duration_ns: int, most: int) -> None:
        """Begin empty.

        Args:
            duration_ns: How long a content is refused, from the last time that
                it did harm.
            most: Contents remembered; the oldest give way.
        """
        self._duration_ns = duration_ns
        self._most = most
        self._until: dict[bytes, int] = {}

    def add(self, body: bytes, now_ns: int) -> None:
        """Refuse requests like ``body`` from now on."""
        digest = content_digest(body)
        # Again at the end: the dictionary is in the order of the times.
        self._until.pop(digest, None)
        self._until[digest] = now_ns + self._duration_ns
        while len(self._until) > self._most:
            del self._until[next(iter(self._until))]

    def holds(self, body: bytes, now_ns: int) -> bool:
        """Tell whether requests like ``body`` are refused."""
        return not self.is_empty(now_ns) and content_digest(body) in self._until

    def is_empty(self, now_ns: int) -> bool:
        """Tell whether nothing is refused any more."""
        until = self._until
        while until and next(iter(until.values())) <= now_ns:
            del until[next(iter(until))]
        return not until
