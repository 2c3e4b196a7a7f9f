"""Settings on trial, and what came of running traffic with them: SLOs met by class, and what it took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaling.policies.settings import Value
from planning.simulator.bins import Column


@dataclass(frozen=True, slots=True)
class Candidate:
    """The policy's settings by name, and `replicas.min`."""

    settings: Mapping[str, Value]
    minimum: int

    def differs_from(self, other: "Candidate") -> dict[str, tuple[Value, Value]]:
        """What is not the same, by name: the other's value and this one's."""
        changed: dict[str, tuple[Value, Value]] = {
            name: (other.settings.get(name), value)
            for name, value in self.settings.items()
            if other.settings.get(name) != value
        }
        if self.minimum != other.minimum:
            changed["replicas.min"] = (other.minimum, self.minimum)
        return changed


@dataclass(frozen=True, slots=True)
class Exact:
    """A run of the whole traffic, at the policy's own pace. `changes` of the number of replicas, `flaps` among them
    (`autoscaling/shadow/contest.py`). `ttft_p99_s` is NaN where nobody was answered. `slots`: of each class the
    requests by half-hour, and those of them in time. `replicas`: the mean number that was paid for, by step of
    `step_s`. `at_most`: the share of the policy's decisions that `replicas.max` or the cost ceiling cut."""

    mean_replicas: float
    changes: int
    flaps: int
    ttft_p99_s: float
    slots: Mapping[str, tuple[Column, Column]]
    step_s: float
    replicas: Column
    at_most: float


@dataclass(frozen=True, slots=True)
class TrialResult:
    """`classes`: the requests of each, and how many had their first token in time. `exact` is None for an estimate from
    parts of the traffic, and for a run that was `stopped` (far more SLOs broken than the whole traffic allows, or far
    dearer than settings that meet all SLOs), whose figures are those of as far as it came, stretched to the whole."""

    classes: Mapping[str, tuple[float, float]]
    replica_hours: float
    exact: Exact | None = None
    stopped: bool = False

    @property
    def attainment(self) -> float:
        total = sum(requests for requests, _ in self.classes.values())
        return sum(kept for _, kept in self.classes.values()) / total if total else 1.0

    def attained(self, name: str) -> float:
        requests, kept = self.classes[name]
        return kept / requests if requests else 1.0

    def slack(self, slos: Mapping[str, float]) -> float:
        """By how much the class with the least of it meets its SLO; negative: by how much one is broken."""
        return min((self.attained(name) - slos[name] for name in self.classes), default=0.0)

    def merit(self, slos: Mapping[str, float]) -> float:
        """The attainment, less what each class lacks of its SLO."""
        return self.attainment - sum(max(0.0, slos[name] - self.attained(name)) for name in self.classes)


OWN, DEFAULTS = "spec", "defaults"


@dataclass(slots=True)
class TuningTrial:
    """`name`: `spec` for the spec's own settings, `defaults`, else its number. `candidate` is None for a fixed number
    of replicas. `draft`: the first look, `exact`: the run of the whole; None where there was none."""

    name: str
    candidate: Candidate | None
    draft: TrialResult | None = None
    exact: TrialResult | None = None

    @property
    def whole(self) -> TrialResult:
        """The run of the whole, of a trial that has one."""
        assert self.exact is not None
        return self.exact

    @property
    def finished(self) -> bool:
        """Whether it was run to the end: only such trials are reported."""
        return self.exact is not None and self.exact.exact is not None


def front(trials: Sequence[TuningTrial], slos: Mapping[str, float]) -> list[TuningTrial]:
    """Of the finished trials those that no other beats in replica-hours and merit, the cheapest first."""
    kept: list[TuningTrial] = []
    finished = [trial for trial in trials if trial.finished]
    for trial in sorted(finished, key=lambda one: (one.whole.replica_hours, -one.whole.merit(slos))):
        if not kept or trial.whole.merit(slos) > kept[-1].whole.merit(slos):
            kept.append(trial)
    return kept
