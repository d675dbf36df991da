"""The requests of one model version whose clients asked for their times."""

from collections.abc import Callable, Iterable, Iterator

from services.router.batch_response import Reply, Timing
from services.router.pending_request import Execution, Instance, PendingRequest
from services.router.request_timing import timing_suffix
from services.router.route_table import Route


class TimedRequests:
    """Few, if any; who is not here costs nothing."""

    __slots__ = ("_requests", "_route")

    def __init__(self, route: Route) -> None:
        """Begin with nobody."""
        self._route = route
        self._requests: set[PendingRequest] = set()

    def __bool__(self) -> bool:
        """Tell whether anybody asked."""
        return bool(self._requests)

    def add(self, request: PendingRequest) -> None:
        """Note that the client of ``request`` asked."""
        self._requests.add(request)

    def forget(self, requests: Iterable[PendingRequest]) -> None:
        """Note that these have got what they asked for, or an error."""
        self._requests.difference_update(requests)

    def replace(self, request: PendingRequest, by: PendingRequest) -> None:
        """Let ``by`` stand for ``request`` from now on."""
        if request in self._requests:
            self._requests.remove(request)
            self._requests.add(by)

    def editor(
        self, execution: Execution, instance: Instance
    ) -> Callable[[Iterator[Reply], Timing], Iterator[Reply]]:
        """Return what adds their times to the replies of an execution."""

        def edit(replies: Iterator[Reply], timing: Timing) -> Iterator[Reply]:
            return self.with_times(replies, execution, timing, instance)

        return edit

    def with_times(
        self,
        replies: Iterator[Reply],
        execution: Execution,
        timing: Timing,
        instance: Instance,
    ) -> Iterator[Reply]:
        """Yield ``replies``, those with their times whose clients asked for them."""
        for request, (response, error) in zip(execution.batch, replies, strict=True):
            if response is None or request not in self._requests:
                yield response, error
                continue
            suffix = timing_suffix(
                queue_ns=execution.dispatched_ns - request.enqueued_ns,
                batch_size=execution.rows,
                timing=timing,
                retries=request.attempts,
                worker=instance.worker,
                version=self._route.version_text,
            )
            yield response + suffix, None
        self._requests.difference_update(execution.batch)
