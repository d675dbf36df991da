"""The requests of sequences that have no answer, by their clients' own. Pure."""

from services.router.pending_request import PendingRequest
from services.router.sequence_request import SequenceRequest


class SequenceMembers:
    """Who waits or is executed, and how many bytes wait."""

    __slots__ = ("_by_client", "_waiting", "size_bytes")

    def __init__(self) -> None:
        """Begin with nobody."""
        self._by_client: dict[PendingRequest, SequenceRequest] = {}
        self._waiting: set[SequenceRequest] = set()
        self.size_bytes = 0

    def wait(self, member: SequenceRequest) -> None:
        """Count one that begins to wait."""
        self._by_client[member.client] = member
        self._waiting.add(member)
        self.size_bytes += len(member.client.body)

    def begin(self, member: SequenceRequest) -> None:
        """Count one no longer: it is executed."""
        if member in self._waiting:
            self._waiting.discard(member)
            self.size_bytes -= len(member.client.body)

    def settle(self, member: SequenceRequest) -> None:
        """Forget one that is answered."""
        self.begin(member)
        self._by_client.pop(member.client, None)

    def of(self, client: PendingRequest) -> SequenceRequest | None:
        """Return what stands for a client's request; None once it is answered."""
        return self._by_client.get(client)
