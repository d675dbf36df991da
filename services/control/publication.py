"""What routers are told: the newest route table. Pure."""

from collections.abc import Mapping

from services.control.events import ModelsLoadable, TrafficSplitsSet
from services.control.model_registry import ModelRegistry
from services.control.route_table import RouteTable, routes_of
from services.control.traffic_split import TrafficSplit


class Publication:
    """The table as last published, and what beside the models goes into the next.

    Attributes:
        table: As last published.
        splits: How requests without a version are shared out, by model.
        loadable: Models that are loaded when somebody asks for them.
    """

    def __init__(self, first_revision: int) -> None:
        """Begin with a table without models."""
        self.table = RouteTable(revision=first_revision, ready=False)
        self.splits: Mapping[str, TrafficSplit] = {}
        self.loadable: frozenset[str] = frozenset()

    def apply(self, event: TrafficSplitsSet | ModelsLoadable) -> None:
        """Take in what the next table says beside the models."""
        match event:
            case TrafficSplitsSet(splits=splits):
                self.splits = splits
            case ModelsLoadable(models=models):
                self.loadable = models

    def renew(self, registry: ModelRegistry, *, is_ready: bool) -> RouteTable | None:
        """Return the next table, which is published now; None if nothing is new."""
        table = RouteTable(
            revision=self.table.revision + 1,
            ready=is_ready,
            versions=routes_of(registry),
            splits=self.splits,
            loadable=self.loadable,
        )
        if table.equals_but_for_revision(self.table):
            return None
        self.table = table
        return table
