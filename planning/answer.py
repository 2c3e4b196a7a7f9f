"""What `raylane simulate` answers beside the run itself: the range of its figures, and the same with one replica fewer
and one more. Each is another run of the same traffic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deployments.engine_model.replica_rate import best_point
from deployments.wire import to_json
from planning.report.words import attained, duration
from planning.simulation import RunFigures, Simulation
from planning.simulator.outcome import Figures, SimulationOutcome
from planning.uncertainty import CostRange, Range, ranges


class Variant(StrEnum):
    """A run, and how it differs from what the spec says."""

    THIS = "as the spec says"
    LOW_COSTS = "costs at their low end"
    HIGH_COSTS = "costs at their high end"
    ONE_FEWER = "one replica fewer"
    ONE_MORE = "one replica more"


ENDS = (Variant.LOW_COSTS, Variant.HIGH_COSTS)
NEIGHBOURS = {Variant.ONE_FEWER: -1, Variant.ONE_MORE: 1}


def variants(case: Simulation, costs: CostRange | None, neighbours: bool) -> dict[Variant, Simulation]:
    """What to run: the simulation itself, first; with the `costs` at the ends of their range; and with one replica
    fewer and one more, where that is possible."""
    found = {Variant.THIS: case}
    if costs is not None:
        found |= {Variant.LOW_COSTS: case.at_costs(costs.low), Variant.HIGH_COSTS: case.at_costs(costs.high)}
    if neighbours:
        moved = {variant: case.with_more(by) for variant, by in NEIGHBOURS.items()}
        found |= {variant: one for variant, one in moved.items() if one is not None}
    return found


TAIL = ("ttft_p90_ms", "ttft_p99_ms")
_NEAR = 0.9
"""Of the least that the replicas may be able to carry: beyond, a TTFT depends on the costs' error more than on them."""


@dataclass(frozen=True, slots=True)
class CarriedRate:
    """Requests/s that the replicas carry for good, by the equation of `replica_rate.py`; `low` and `high`: with the
    costs at the ends of their range. `offered`: what the traffic brings, on average."""

    per_s: float
    low: float
    high: float
    offered: float

    @property
    def is_near(self) -> bool:
        """Whether the traffic comes so near to it that a tail of the TTFT says nothing."""
        return self.offered > _NEAR * self.low

    def __str__(self) -> str:
        between = "" if self.low == self.high else f" ({self.low:.3g} to {self.high:.3g})"
        return f"{self.per_s:.3g} requests/s{between}; the traffic brings {self.offered:.3g}"


def capacity_of(case: Simulation, costs: CostRange | None, out: SimulationOutcome) -> CarriedRate | None:
    """None where a policy decides on the replicas, or there are several groups; and without traffic over
    time. `out`: the run, for what of its prompts was cached."""
    seconds = float(out.arrived_s[-1] - out.arrived_s[0]) if len(out.arrived_s) else 0.0
    if case.scales or len(case.views) > 1 or not seconds:
        return None
    prompt, output = float((out.prompt_tokens - out.cached_tokens).mean()), float(out.output_tokens.mean())
    spread = float(out.output_tokens.std()) / output
    point = best_point(case.cell_settings().limits, case.cost, prompt, output, output_cv=spread)
    if point is None:
        return None
    per_s, (low, high) = case.replicas * point.requests_per_s, (1.0, 1.0) if costs is None else (costs.low, costs.high)
    return CarriedRate(per_s, per_s / high, per_s / low, len(out.arrived_s) / seconds)


@dataclass(frozen=True, slots=True)
class Answer:
    """The figures of all runs. `costs`: the range that the costs were given, None: none was asked for. `capacity`: of
    replicas whose number stays; None: not known."""

    runs: Mapping[Variant, RunFigures]
    costs: CostRange | None
    capacity: CarriedRate | None = None

    @property
    def lines(self) -> Sequence[Figures]:
        """The figures by lane, and of all requests, as the spec says."""
        return self.runs[Variant.THIS].lines

    @property
    def ranges(self) -> list[dict[str, Range]]:
        """Of each line of figures the range of each figure; empty without a range of the costs."""
        if self.costs is None:
            return [{} for _ in self.lines]
        return ranges([self.runs[one].lines for one in (Variant.THIS, *ENDS)])

    @property
    def hours(self) -> Range | None:
        """The range of the replica-hours."""
        if self.costs is None:
            return None
        hours = [self.runs[one].replica_hours for one in (Variant.THIS, *ENDS)]
        return min(hours), max(hours)

    def lanes_as_json(self) -> list[dict[str, Any]]:
        """The figures by lane, and of all requests, with their ranges."""
        return [
            to_json(line) | {"range": {name: list(ends) for name, ends in of.items()}}
            for line, of in zip(self.lines, self.ranges, strict=True)
        ]

    def neighbours_as_json(self) -> dict[str, Any]:
        """The figures with one replica fewer and one more."""
        return {
            variant.name.lower(): to_json(run.lines[-1])
            | to_json({"classes": run.classes, "replica_hours": run.replica_hours, "prefix_hits": run.prefix_hits})
            for variant, run in self.neighbours().items()
        }

    def neighbours(self) -> dict[Variant, RunFigures]:
        """The runs with one replica fewer and one more."""
        return {variant: self.runs[variant] for variant in NEIGHBOURS if variant in self.runs}


def with_range(name: str, line: Figures, of: Mapping[str, Range]) -> tuple[str, str]:
    """A figure as text, and its range; the range is empty where there is none, or where it would read the same."""
    value = _shown(name, float(getattr(line, name)))
    if name not in of or {_shown(name, end) for end in of[name]} == {value}:
        return value, ""
    low, high = (_shown(name, end) for end in of[name])
    return value, f"{low} to {high}"


def _shown(name: str, value: float) -> str:
    if name.endswith("_ms"):
        return duration(value / 1e3)
    return attained(value) if name == "answered_in_time" else f"{value:,.0f}"


NEIGHBOUR_COLUMNS = ("", "in time", "TTFT p50", "p90", "p99", "TPOT p50", "rejected", "expired", "replica-hours")
_NEIGHBOUR_FIGURES = (
    "answered_in_time",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "rejected",
    "expired",
)


def neighbour_rows(answer: Answer) -> list[tuple[str, ...]]:
    """A row of `NEIGHBOUR_COLUMNS` for one replica fewer, for the run itself, and for one more; none where it was not
    asked for. In time: by traffic class."""
    found = answer.neighbours()
    if not found:
        return []
    order = (Variant.ONE_FEWER, Variant.THIS, Variant.ONE_MORE)
    return [_neighbour_row(variant, answer.runs[variant]) for variant in order if variant in answer.runs]


def _neighbour_row(variant: Variant, run: RunFigures) -> tuple[str, ...]:
    whole = run.lines[-1]
    first, *rest = (_shown(name, float(getattr(whole, name))) for name in _NEIGHBOUR_FIGURES)
    by_class = ", ".join(f"{one.name} {attained(one.in_time)}" for one in run.classes)
    return (variant.value, by_class if len(run.classes) > 1 else first, *rest, f"{run.replica_hours:,.2f}")
