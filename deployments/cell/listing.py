"""What the directory tells the gateways of their cell, and what a gateway keeps of it. No Ray here, so that the
gateway's core and its tests need none."""

import time
from dataclasses import dataclass, field

from deployments.cell.control import Control
from deployments.cell.departure import Departures
from deployments.cell.orders import Orders
from deployments.cell.owners import Ownership
from deployments.cell.scaling_state import ScalingState, ScalingSummary
from deployments.protocol import ReplicaFacts
from deployments.starts.start import CellStarts


@dataclass(frozen=True, slots=True)
class Listing:
    """`version` grows with each change; `spec_json` is the spec in force, None where the directory knows none;
    `spec_number` grows with each.

    `owners` says who owns which model, `gateways` who lives and where each listens for the others, `lost` which were
    given up last. `orders` are the operators', `scaling` is what autoscalers say, `departures` tells who ended,
    `starts` how replicas start.
    """

    version: int
    replicas: tuple[ReplicaFacts, ...]
    spec_json: str | None
    owners: tuple[Ownership, ...] = ()
    gateways: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()
    orders: Orders = field(default_factory=Orders)
    scaling: ScalingSummary = field(default_factory=ScalingSummary)
    departures: Departures = field(default_factory=Departures)
    starts: CellStarts = field(default_factory=CellStarts)
    spec_number: int = 0


class Announced:
    """Kept while the directory is away; controls end by themselves all the same."""

    def __init__(self) -> None:
        self.orders = Orders()
        self.scaling = ScalingSummary()
        self.departures = Departures()
        self.starts = CellStarts()

    def take(self, listing: Listing) -> None:
        self.orders, self.scaling, self.departures = listing.orders, listing.scaling, listing.departures
        self.starts = listing.starts

    def controls_of(self, model: str) -> tuple[Control, ...]:
        """A model's controls in force now."""
        return self.orders.of(model, time.time())

    def scaling_of(self, model: str) -> ScalingState | None:
        return self.scaling.of(model)

    def ready_at_s(self, model: str) -> float | None:
        """When the model's next replica should be ready, on this process's clock; None: nobody knows of one that
        starts."""
        state = self.scaling.of(model)
        ready_unix_s = None if state is None else state.ready_unix_s
        return None if ready_unix_s is None else time.monotonic() + ready_unix_s - time.time()
