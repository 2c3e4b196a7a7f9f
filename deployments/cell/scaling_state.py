"""What an autoscaler reports of its decisions: kept by the directory, sent to every gateway, shown by status and
metrics. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SAME_TIME_S = 0.5
"""A smaller change of the time at which a start will be done is not reported again."""
_PATIENCE_S = 30.0
"""A decision may be so late: a controller that restarts takes seconds, and what is no news travels with what is."""


@dataclass(frozen=True, slots=True)
class ScalingState:
    """One decision on the replicas of one model or group (`model`: a `Model.group_key`), at `at_unix_s` (time of day).

    `requested` were asked for after all limits, for `reason` (`scaler/decision.py`); `applied` is what the platform was
    asked for before, `ready` how many of them take work, `starting` how many are not there yet, or are on their way out
    by an operator's order; the rest is cordoned or unresponsive. `start_up_eta_s`: in how many seconds, from
    `at_unix_s`, the next replica that starts should be ready; None: none starts, or nobody knows. `alarms`: what is
    wrong, by kinds of a closed set. `shadow`: what a second policy would have done, in its own words. `scheduled`: the
    entry of `replicas.schedule` that bounds the number now. `overflow`: of a group, the share of its demand that it
    cannot carry, which the next group of its lanes is to carry.
    """

    model: str
    requested: int
    applied: int
    ready: int
    starting: int
    reason: str
    at_unix_s: float
    start_up_eta_s: float | None = None
    alarms: tuple[str, ...] = ()
    shadow: Mapping[str, Any] = field(default_factory=dict)
    scheduled: str | None = None
    overflow: float = 0.0

    @property
    def ready_unix_s(self) -> float | None:
        """When the next replica should be ready (time of day)."""
        return None if self.start_up_eta_s is None else self.at_unix_s + self.start_up_eta_s

    def differs_from(self, other: "ScalingState") -> bool:
        ready, before = self.ready_unix_s, other.ready_unix_s
        same_start = ready is before is None or (
            ready is not None and before is not None and abs(ready - before) < _SAME_TIME_S
        )
        return not same_start or self._reported() != other._reported()

    def _reported(self) -> tuple[Any, ...]:
        counts = (self.requested, self.applied, self.ready, self.starting)
        return (*counts, self.reason, self.alarms, dict(self.shadow), self.scheduled, self.overflow)


@dataclass(frozen=True, slots=True)
class ScalingSummary:
    """The last state of each model, and how many `decisions` (by model and reason) and `alarms` (by model and kind)
    there were. `heard`: when the last one on each model was taken (time of day), news or not."""

    states: tuple[ScalingState, ...] = ()
    decisions: tuple[tuple[str, str, int], ...] = ()
    alarms: tuple[tuple[str, str, int], ...] = ()
    heard: tuple[tuple[str, float], ...] = ()

    def of(self, model: str) -> ScalingState | None:
        """What was decided last on a model; None where nobody scales it."""
        return next((state for state in self.states if state.model == model), None)

    def overdue_s(self, model: str, period_s: float, unix_s: float) -> float | None:
        """How long ago the last decision on a model was taken, where another one should have come; None where all is
        well, or none ever came."""
        ago_s = next((unix_s - heard_s for name, heard_s in self.heard if name == model), 0.0)
        return ago_s if ago_s > _PATIENCE_S + 2 * period_s else None


class ScalingStates:
    """Where the directory keeps it."""

    def __init__(self) -> None:
        self._states: dict[str, ScalingState] = {}
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._alarms: Counter[tuple[str, str]] = Counter()
        self._heard: dict[str, float] = {}

    def take(self, state: ScalingState) -> bool:
        """A decision was taken. Whether it is news; counts alone wait for the next news."""
        before = self._states.get(state.model)
        news = before is None or state.differs_from(before)
        if news or state.start_up_eta_s is None:
            self._states[state.model] = state
        self._heard[state.model] = state.at_unix_s
        self._decisions[state.model, state.reason] += 1
        for kind in state.alarms:
            self._alarms[state.model, kind] += 1
        return news

    def scaling(self) -> ScalingSummary:
        decisions, alarms = (
            tuple((model, word, count) for (model, word), count in counter.items())
            for counter in (self._decisions, self._alarms)
        )
        return ScalingSummary(tuple(self._states.values()), decisions, alarms, tuple(self._heard.items()))
