"""One try: settings, and what came of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planning.gauntlet.frontier import TriedSettings, non_dominated
from planning.tune.candidate import Candidate
from planning.tune.played import Played

OWN, DEFAULTS = "spec", "defaults"


@dataclass(slots=True)
class Trial:
    """`name`: `spec` for the spec's own settings, `defaults`, else its number. `candidate` is None for a fixed number of replicas. `draft`: the first
    look, `exact`: the run of the whole; None where there was none."""

    name: str
    candidate: Candidate | None
    draft: Played | None = None
    exact: Played | None = None

    @property
    def finished(self) -> bool:
        """Whether it was played to the end: only such trials are reported."""
        return self.exact is not None and self.exact.exact is not None


def front(trials: Sequence[Trial], promises: Mapping[str, float]) -> list[Trial]:
    """Of the finished trials those that no other beats in replica-hours and merit, the cheapest first."""
    finished = [trial for trial in trials if trial.finished]
    points = [TriedSettings({}, _merit(trial, promises), _hours(trial)) for trial in finished]
    trial_at = {id(point): trial for point, trial in zip(points, finished, strict=True)}
    return [trial_at[id(point)] for point in non_dominated(points)]


def _hours(trial: Trial) -> float:
    assert trial.exact is not None
    return trial.exact.replica_hours


def _merit(trial: Trial, promises: Mapping[str, float]) -> float:
    assert trial.exact is not None
    return trial.exact.merit(promises)
