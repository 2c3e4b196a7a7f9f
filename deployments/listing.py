"""What the directory tells the gateways of their cell. No Ray here, so that the gateway's core and its tests need none."""

from dataclasses import dataclass

from deployments.ownership.owners import Ownership
from deployments.protocol import ReplicaFacts


@dataclass(frozen=True, slots=True)
class Listing:
    """`version` grows with each change; `spec_json` is the spec that was applied last, None when none was since the start.

    `owners` says who owns which model, `gateways` who lives and where each listens for the others, `lost` which were given up last.
    """

    version: int
    replicas: tuple[ReplicaFacts, ...]
    spec_json: str | None
    owners: tuple[Ownership, ...] = ()
    gateways: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()
