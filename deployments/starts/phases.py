"""The phases of a replica's start, and how its time is divided among them. Pure.

    seconds(phase) = time in which the start was in it;   sum of all phases = time from the request to ready

The phases are tiles: at each moment a start is in exactly one. The replica says in which one it is by `PhaseMark`s.
While it waits for its engine, the engine's own processes say what they do by `Span`s, which may overlap (several ranks
load at the same time) and nest (a compilation in a warm-up). Where several are open, the later phase counts.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """In their usual order. A start can be in one several times."""

    NODE = "node"
    """No process of it runs yet: a node with room is found, or made; and the wait after a start that failed."""
    ENVIRONMENT = "environment"
    """Its processes begin, and import Ray, torch and the engine."""
    FETCH = "fetch"
    """The model's files come to the node. Nothing, where they are there."""
    LOAD = "load"
    """The engine reads the weights."""
    COMPILE = "compile"
    """torch compiles the model, or loads what it compiled earlier."""
    GRAPHS = "graphs"
    """The engine captures CUDA graphs. Nothing on CPUs, and with `enforce_eager`."""
    WARM_UP = "warm_up"
    """The engine measures its memory and makes its KV cache; it answers one request of each kind."""
    FIRST_TOKEN = "first_token"
    """A request as a client's, for one token; then the directory hears of the replica."""


PhaseSeconds = Mapping[Phase, float]
"""Seconds by phase; a phase that is missing took none."""

_OVER = (Phase.GRAPHS, Phase.COMPILE, Phase.LOAD, Phase.FETCH)
"""What spans tell of; of several that are open, the first one here counts."""


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """From `at_s` on the replica was in `phase`. All times are on one monotonic clock of its node (seconds)."""

    phase: Phase
    at_s: float


@dataclass(frozen=True, slots=True)
class Span:
    """A process did what `phase` says from `begin_s` to `end_s`; infinite: it still does."""

    phase: Phase
    begin_s: float
    end_s: float = math.inf


def tiled(marks: Sequence[PhaseMark], spans: Iterable[Span], until_s: float) -> list[PhaseMark]:
    """What a start did one after the other, from the first mark until `until_s`: each phase until the next begins.

    A clock that seems to run backwards adds nothing. After the weights are loaded, `environment` is `warm_up`: the
    replica waits for its engine in both.
    """
    ordered = sorted(marks, key=lambda mark: mark.at_s)
    begin_s = ordered[0].at_s
    known = [span for span in spans if span.end_s > begin_s and span.begin_s < until_s and span.end_s > span.begin_s]
    loaded_s = min((span.begin_s for span in known if span.phase is Phase.LOAD), default=math.inf)
    times_s = {max(begin_s, span.begin_s) for span in known} | {mark.at_s for mark in ordered}
    times_s |= {span.end_s for span in known}
    found: list[PhaseMark] = []
    for at_s in sorted(time_s for time_s in times_s if time_s < until_s or time_s == begin_s):
        phase = _phase_at(at_s, ordered, known, loaded_s)
        if not found or found[-1].phase is not phase:
            found.append(PhaseMark(phase, at_s))
    return found


def _phase_at(at_s: float, marks: Sequence[PhaseMark], spans: Sequence[Span], loaded_s: float) -> Phase:
    there = {span.phase for span in spans if span.begin_s <= at_s < span.end_s}
    for phase in _OVER:
        if phase in there:
            return phase
    phase = marks[bisect.bisect_right(marks, at_s, key=lambda mark: mark.at_s) - 1].phase
    return Phase.WARM_UP if phase is Phase.ENVIRONMENT and at_s >= loaded_s else phase


def seconds_of(tiles: Sequence[PhaseMark], until_s: float) -> dict[Phase, float]:
    """The time in each phase; all phases are named. The sum is the time from the first tile to `until_s`."""
    seconds = dict.fromkeys(Phase, 0.0)
    ends_s = [*(tile.at_s for tile in tiles[1:]), max(until_s, tiles[-1].at_s)]
    for tile, end_s in zip(tiles, ends_s, strict=True):
        seconds[tile.phase] += end_s - tile.at_s
    return seconds


def corrected(seconds: PhaseSeconds, phase: Phase, reported_s: float) -> dict[Phase, float]:
    """`phase` took as long as the engine itself reports, if that is more than was seen of it; what is added was counted
    as `warm_up`, and the sum stays."""
    more = min(max(0.0, reported_s - seconds[phase]), seconds[Phase.WARM_UP])
    return {**seconds, phase: seconds[phase] + more, Phase.WARM_UP: seconds[Phase.WARM_UP] - more}
