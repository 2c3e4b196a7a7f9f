"""What the directory tells the gateways of their cell. No Ray here, so that the gateway's core and its tests need none."""

from dataclasses import dataclass

from deployments.protocol import ReplicaFacts


@dataclass(frozen=True, slots=True)
class Listing:
    """`version` grows with each change; `spec_json` is the spec that was applied last, None when none was since the start."""

    version: int
    replicas: tuple[ReplicaFacts, ...]
    spec_json: str | None
