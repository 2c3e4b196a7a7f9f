"""Decisions on the time line: what a simulated cell decided, when and why; those of one kind and reason in one bin are one entry with a count."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from planning.simulator.bins import Bins, Column, Mask
from planning.simulator.outcome import CAUSES, Outcome


class DecisionKind(StrEnum):
    """What was decided, or befell. `FAILED`: requests lost with their replica. `REPLICAS`: how many there shall be."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    PROMOTED = "promoted"
    FAILED = "failed"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class Decision:
    """`count` decisions of one kind at `at_s`: `what` they were about (a lane, a number of replicas), and the reason."""

    at_s: float
    kind: DecisionKind
    reason: str
    what: str
    count: int = 1


def decisions(out: Outcome, lanes: Sequence[str], bins: Bins) -> tuple[Decision, ...]:
    """What the scheduler decided beyond placing requests in their turn, one entry a bin, in the order of time."""
    found: list[Decision] = []
    for number, lane in enumerate(lanes):
        own = out.lane == number
        for cause_number, cause in enumerate(CAUSES):
            found += _binned(bins, out.arrived_s, own & (out.cause == cause_number), DecisionKind.REJECTED, cause.value, lane)
        found += _binned(bins, out.expired_s, own & out.expired, DecisionKind.EXPIRED, "queue_wait", lane)
        found += _binned(bins, _lost_s(out), own & out.failed, DecisionKind.FAILED, "replica_lost", lane)
        found += _binned(bins, out.placed_s, own & out.promoted, DecisionKind.PROMOTED, "max_wait", lane)
    return tuple(sorted(found, key=lambda decision: decision.at_s))


def scalings(out: Outcome) -> tuple[Decision, ...]:
    """What an autoscaler decided that changed the number of replicas: how many more or fewer, and its reason."""
    return tuple(
        Decision(one.at_s, DecisionKind.REPLICAS, one.reason, "more" if one.requested > one.applied else "fewer", abs(one.requested - one.applied))
        for one in out.scalings
        if one.changes
    )


def _lost_s(out: Outcome) -> Column:
    """When each request's replica ended."""
    ended = np.array([*(life.ended_s for life in out.lives), np.nan])
    lost: Column = ended[out.replica]
    return lost


def _binned(bins: Bins, times_s: Column, chosen: Mask, kind: DecisionKind, reason: str, what: str) -> list[Decision]:
    if not chosen.any():
        return []
    count = bins.counts(times_s[chosen])
    return [Decision(float(bins.middles_s[index]), kind, reason, what, int(count[index])) for index in np.flatnonzero(count)]
