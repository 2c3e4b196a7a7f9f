"""What each changed setting of a proposal gains: a run of the whole traffic with that setting as it is now and all
others as proposed (leave one out). A change that gains nothing is taken back: whoever reads the diff must find a reason
for each line of it.

The settings are judged one after the other, each beside what is left of the proposal, so one run for each suffices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaling.policies.settings import Value
from planning.tune.choice import Chosen, Ground, choose
from planning.tune.space import MIN
from planning.tune.trial import Candidate, TrialResult, TuningTrial

_MIN_GAIN = 0.005
"""Of the replica-hours: a change that saves a smaller share, and keeps no SLO that is missed without it, gains
nothing."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Of the change of one setting. `attained`: the share in time of each class without it, `saves`: the replica-hours
    of the traffic that it saves. `kept`: whether the proposal still has it."""

    setting: str
    now: Value
    proposed: Value
    attained: Mapping[str, float]
    saves: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Gains:
    """What is left of the proposal, and what was run to find out."""

    chosen: Chosen
    found: tuple[Gain, ...]
    runs: tuple[TuningTrial, ...]


def gains(
    chosen: Chosen,
    now: Candidate,
    trials: Sequence[TuningTrial],
    slos: Mapping[str, float],
    run: Callable[[Candidate], TrialResult],
) -> Gains:
    """`now`: the settings that the spec has, or for a fixed number of replicas the policy's defaults. `run` is asked
    for what none of the `trials` has run to the end."""
    found: list[Gain] = []
    runs: list[TuningTrial] = []
    assert chosen.trial.candidate is not None
    for setting, (before, proposed) in chosen.trial.candidate.differs_from(now).items():
        assert chosen.trial.candidate is not None
        without = _with(chosen.trial.candidate, setting, before)
        trial = next((one for one in trials if one.finished and one.candidate == without), None)
        if trial is None:
            trial = TuningTrial(f"{chosen.trial.name}, {setting} as now", without, exact=run(without))
            runs.append(trial)
        other = choose([trial], slos)
        kept = _better(chosen, other, slos)
        saves = trial.whole.replica_hours - chosen.trial.whole.replica_hours
        attained = {name: trial.whole.attained(name) for name in trial.whole.classes}
        found.append(Gain(setting, before, proposed, attained, saves, kept))
        chosen = chosen if kept else other
    return Gains(chosen, tuple(found), tuple(runs))


def _with(candidate: Candidate, setting: str, value: Value) -> Candidate:
    if setting == MIN:
        return replace(candidate, minimum=int(value or 0))
    return replace(candidate, settings={**candidate.settings, setting: value})


def _better(chosen: Chosen, other: Chosen, slos: Mapping[str, float]) -> bool:
    """Whether the chosen settings keep the SLOs more surely than the other ones, or take fewer hours."""
    one, two = chosen.trial.whole, other.trial.whole
    order = list(Ground)
    if order.index(other.ground) > order.index(chosen.ground):
        return True
    if other.ground is Ground.NEAREST and two.slack(slos) < one.slack(slos):
        return True
    return two.replica_hours > (1 + _MIN_GAIN) * one.replica_hours
