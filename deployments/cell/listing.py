"""What the directory tells the gateways of their cell. No Ray here, so that the gateway's core and its tests need none."""

from dataclasses import dataclass, field

from deployments.cell.departure import Departures
from deployments.cell.orders import Orders
from deployments.cell.scaling_state import Scaling
from deployments.ownership.owners import Ownership
from deployments.protocol import ReplicaFacts


@dataclass(frozen=True, slots=True)
class Listing:
    """`version` grows with each change; `spec_json` is the spec that was applied last, None when none was since the start.

    `owners` says who owns which model, `gateways` who lives and where each listens for the others, `lost` which were given up last. `orders` are the
    operators', `scaling` is what autoscalers say, `departures` tells who ended.
    """

    version: int
    replicas: tuple[ReplicaFacts, ...]
    spec_json: str | None
    owners: tuple[Ownership, ...] = ()
    gateways: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()
    orders: Orders = field(default_factory=Orders)
    scaling: Scaling = field(default_factory=Scaling)
    departures: Departures = field(default_factory=Departures)
