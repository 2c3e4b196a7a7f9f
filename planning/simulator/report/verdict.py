"""The one line above everything: does this cell keep its promises under this load, and if not, since when and for want of what."""

from dataclasses import dataclass

import numpy as np

from planning.simulator.report.facts import Facts, Target
from planning.simulator.report.run import ClassShare, Run
from planning.simulator.words import at, attained, bound, percent
from planning.simulator.worst import WAITED_FOR, held_up_by


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kept`: every class had its share in time. `line`: the judgement; `story`: what there is to know next."""

    kept: bool
    line: str
    story: str


def verdict(run: Run, facts: Facts) -> Verdict:
    """The judgement of a run."""
    targets = {target.name: target for target in facts.targets}
    judged = [(share, targets[share.name]) for share in run.classes if share.name in targets]
    kept = all(share.in_time >= target.attainment for share, target in judged)
    line = ("Keeps its SLO: " if kept else "Misses its SLO: ") + "; ".join(_judged(share, target) for share, target in judged) + "."
    return Verdict(kept, line, _calm(run) if kept else _trouble(run, facts))


def _judged(share: ClassShare, target: Target) -> str:
    promised = f"promised: {100 * target.attainment:g} %"
    return f"{attained(share.in_time)} of {share.requests:,} {share.name} requests had their first token within {bound(target.ttft_s)} ({promised})"


def _calm(run: Run) -> str:
    if not run.worst:
        return "No request missed it."
    slice_ = run.worst[0]
    kv = percent(float(run.line.cell.kv_most.max()))
    worst = f"Worst: from {at(slice_.from_s)} on, {slice_.missed:,} of {slice_.arrived:,} missed it, most in lane {slice_.lane}."
    return f"{worst} The fullest KV cache reached {kv}."


def _trouble(run: Run, facts: Facts) -> str:
    minutes, least = run.minutes, min(target.attainment for target in facts.targets)
    arrived = sum((lane.arrived for lane in minutes.lanes), np.zeros(minutes.bins.count))
    missed = sum((lane.missed for lane in minutes.lanes), np.zeros(minutes.bins.count))
    under = np.flatnonzero(missed > (1 - least) * arrived)
    slices = "minutes" if minutes.bins.width_s == 60 else f"slices of {minutes.bins.width_s:g} s"
    busy = int((arrived > 0).sum())
    parts = [f"{len(under):,} of {busy:,} {slices} with arrivals were under the promise, the first at {at(float(minutes.bins.edges_s[under[0]]))}"]
    late, queued = (sum(float(getattr(lane, name).sum()) for lane in minutes.lanes) for name in ("ttft_sum_s", "queued_sum_s"))
    if late:
        parts.append(f"late requests spent {percent(queued / late)} of their TTFT waiting in a lane, the rest in the engine")
    reason = held_up_by(run.line.waits)
    if reason is not None:
        parts.append(f"what held the lanes up most: {WAITED_FOR[reason]}")
    return _sentence("; ".join(parts))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
