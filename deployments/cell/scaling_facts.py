"""The snapshot that a model's owner gives an autoscaler: the gateway writes it (`wire.encode`), the policy reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from deployments.scheduling import Snapshot
from deployments.wire import decoder

SCALING_PATH = "/raylane/scaling"
"""GET `SCALING_PATH/MODEL` on a gateway's port for the cell, with the cluster's secret. 404: no such
model; 409: another gateway owns it, or none does."""


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    """The scheduler of `model` under the owner of `epoch`, `age_s` seconds before the page was sent.

    `attainment`: for each class, the share of requests that its SLO wants in time. `peers_spare`: what other cells
    would take of its requests now, in replicas' worth (`CellPeering.spare`).
    """

    model: str
    epoch: int
    age_s: float
    snapshot: Snapshot
    attainment: Mapping[str, float]
    peers_spare: float = 0.0


read_scaling_facts = decoder(ScalingFacts)
