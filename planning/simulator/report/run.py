"""A simulated run, as a report needs it: made once, from what the run left behind."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planning.simulator.decisions import Decision, decisions
from planning.simulator.outcome import Figures, Outcome, figures
from planning.simulator.sampler import Samples
from planning.simulator.timeline import ReplicaCount, Timeline, run_length_s, timeline
from planning.simulator.workload import Workload
from planning.simulator.worst import Slice, slices_for, worst


@dataclass(frozen=True)
class ClassShare:
    """A traffic class of the run: its requests, and the share of them in time."""

    name: str
    requests: int
    in_time: float


@dataclass(frozen=True)
class Run:
    """The run in figures (by lane, the last in all), over time, and its worst minutes."""

    outcome: Outcome
    figures: tuple[Figures, ...]
    classes: tuple[ClassShare, ...]
    line: Timeline
    minutes: Timeline
    worst: tuple[Slice, ...]
    decided: tuple[Decision, ...]

    @property
    def whole(self) -> Figures:
        """All requests."""
        return self.figures[-1]


def describe(
    out: Outcome, work: Workload, lanes: Sequence[str], samples: Samples, replicas: Sequence[ReplicaCount], decided: Sequence[Decision] = ()
) -> Run:
    """`decided`: decisions beyond the scheduler's own, such as those of an autoscaler."""
    slo_s = work.ttft_slo_s
    line = timeline(out, slo_s, lanes, samples, replicas)
    minutes = timeline(out, slo_s, lanes, samples, replicas, slices_for(run_length_s(out)))
    by_lane = [figures(name, out, slo_s, out.lane == number) for number, name in enumerate(lanes)]
    whole = figures("all", out, slo_s, np.ones(len(work), dtype=np.bool_))
    all_decided = sorted((*decided, *decisions(out, lanes, line.bins)), key=lambda one: one.at_s)
    return Run(out, (*by_lane, whole), _classes(out, work), line, minutes, worst(minutes), tuple(all_decided))


def _classes(out: Outcome, work: Workload) -> tuple[ClassShare, ...]:
    in_time = np.nan_to_num(out.ttft_s, nan=np.inf) <= work.ttft_slo_s
    names, number = np.unique(np.array(work.traffic_class, dtype=object).astype(str), return_inverse=True)
    shares = (in_time[number == index] for index in range(len(names)))
    return tuple(ClassShare(str(name), len(share), float(share.mean())) for name, share in zip(names, shares, strict=True))
