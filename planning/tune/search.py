"""The search: many first looks, guided by Optuna, and runs of the whole traffic for those that deserve one.

    first      the spec's own settings and the defaults: runs of the whole, to the end, and first looks
    look       some first looks (`TrialRunner.draft`). Optuna's tree-structured Parzen estimator and a surrogate
               (`surrogate.py`) propose in turns what to look at: most merit, fewest replica-hours, each SLO a
               constraint, with what first looks are known to overlook (`choice.py`)
    run        of all that was looked at, what is expected to save most: a run of the whole. Then look again, until the
               time is over

Only runs of the whole are reported. A look or a run ends early when it can not come to anything, and the last one when
the time is over. Merit beyond what an SLO needs is worth nothing to the sampler, so that it looks where the SLO is just
kept; the drawn front has it all.

Estimator: S. Watanabe: Tree-Structured Parzen Estimator (arXiv 2304.11127, 2023); for several objectives Y. Ozaki et
al., GECCO 2020.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.samplers import TPESampler

from cluster.errors import InputError
from planning.tune.choice import correction, most_promising
from planning.tune.space import Space
from planning.tune.surrogate import Observations, propose
from planning.tune.trial import DEFAULTS, OWN, Candidate, TrialResult, TuningTrial
from planning.tune.trial_runner import OutOfTime, TrialRunner

_LOOKING = 0.6
"""Of the time: the share for first looks."""
_LOOKS = 6
"""With a number of trials given: so many looks for a run."""
_LAST_RUNS = 3
_HARDLY = 1e-4
"""The least share, and the fewest hours, of which a logarithm is taken."""
_MAX_KNOWN = 100
"""So many proposals in a row of what was looked at already: there is nothing else."""
_STARTUP = 12
_DEAR = 2.0
"""Times the hours of the cheapest settings that meet all SLOs: what costs more is not looked at to the end."""
_ENOUGH = 0.1
"""Of what an SLO allows to miss: to miss less than this share of it is no merit to the sampler."""


class SearchError(InputError):
    """A search that came to nothing; the message says why and what to do."""

    hint = "a higher --minutes, or less traffic by --from and --to or --limit"


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to search: seconds, and at most so many settings (None: as many as there is time for). With so many
    settings and time enough, the same search finds the same."""

    seconds: float
    trials: int | None = None


class Search:
    """One search. `clock` tells seconds; `tell` is called with what is going on and the share of the time that is
    over."""

    def __init__(
        self,
        runner: TrialRunner,
        space: Space,
        slos: Mapping[str, float],
        budget: Budget,
        clock: Callable[[], float],
        tell: Callable[[str, float], None] = lambda text, share: None,
        seed: int = 0,
    ) -> None:
        self.trials: list[TuningTrial] = []
        self._runner = runner
        self._space = space
        self._slos = slos
        self._budget = budget
        self._clock = clock
        self._tell = tell
        self._began_s = clock()
        self._end_s = self._began_s + budget.seconds
        self._took_s = {"look": 0.0, "run": 0.0}
        self._known_before = 0
        self._proposals = 0
        self._rng = np.random.default_rng(seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = TPESampler(n_startup_trials=_STARTUP, multivariate=True, seed=seed)
        self._study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
        self._distributions = space.distributions()

    def run(self, own: Candidate | None, defaults: Candidate) -> list[TuningTrial]:
        """All trials, `own` (None: a fixed number of replicas) and `defaults` first. Raises SearchError without time
        for one with settings."""
        first = [TuningTrial(OWN, own)] if own == defaults else [TuningTrial(OWN, own), TuningTrial(DEFAULTS, defaults)]
        self.trials = first
        try:
            for trial in first:
                self._run_whole(trial, to_the_end=True)
            for trial in first:
                if trial.candidate is not None:
                    self._look(trial)
            self._search()
        except OutOfTime:
            pass
        if not any(trial.finished and trial.candidate is not None for trial in self.trials):
            raise SearchError(
                "no simulation of the traffic with settings of the policy finished within "
                f"{self._budget.seconds / 60:g} minutes; allowed: more time, or less traffic"
            )
        return [trial for trial in self.trials if trial.exact is not None or trial.draft is not None]

    def _search(self) -> None:
        maximum = self._budget.trials
        while maximum is None or len(self.trials) < maximum:
            for _ in range(self._looks()):
                if maximum is None or len(self.trials) < maximum:
                    self._look_anew()
            self._run_most_promising()
        for _ in range(_LAST_RUNS):
            self._run_most_promising()

    def _looks(self) -> int:
        """How many before the next run of the whole; none when there is time for runs alone."""
        if self._budget.trials is not None:
            return _LOOKS
        look_s, run_s = max(1e-9, self._took_s["look"]), self._took_s["run"]
        looks = min(2 * _LOOKS, max(2, round(_LOOKING / (1 - _LOOKING) * run_s / look_s)))
        return looks if self._clock() + looks * look_s + 2 * run_s < self._end_s else 0

    def _run_most_promising(self) -> None:
        trial = most_promising(self.trials, self._slos)
        if trial is not None:
            self._run_whole(trial)
        elif self._budget.trials is None:
            self._look_anew()

    def _look_anew(self) -> None:
        self._proposals += 1
        if self._proposals > _STARTUP and self._proposals % 2:
            self._propose()
        asked = self._study.ask(self._distributions)
        trial = TuningTrial(str(asked.number), self._space.candidate(asked.params))
        if any(trial.candidate == other.candidate for other in self.trials):
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
            self._known_before += 1
            if self._known_before > _MAX_KNOWN:
                raise OutOfTime  # there is nothing left to try
            return
        self._known_before = 0
        self._look(trial)
        assert trial.draft is not None
        self._say(f"{len(self.trials)} settings looked at")
        for name, lacking in self._broken(trial.draft).items():
            asked.set_constraint(name, lacking)
        self._study.tell(asked, self._values(trial.draft))
        self.trials.append(trial)

    def _propose(self) -> None:
        """Has the sampler ask for what the surrogate proposes; where no surface can be laid, it asks for what it
        likes."""
        looks = [
            (trial.candidate, trial.draft)
            for trial in self.trials
            if trial.candidate and trial.draft and not trial.draft.stopped
        ]
        if not looks:
            return
        gap = correction(self.trials, self._slos).gap
        names = sorted(self.trials[0].exact.classes if self.trials[0].exact else self._slos)
        missed = [
            [(1 - draft.attained(name) + _HARDLY) / max(_HARDLY, 1 - self._slos[name] - gap) for name in names]
            for _, draft in looks
        ]
        places = np.array([self._space.place(candidate) for candidate, _ in looks])
        seen = Observations(places, np.log([max(_HARDLY, draft.replica_hours) for _, draft in looks]), np.log(missed))
        if seen.enough:
            self._study.enqueue_trial(self._space.at(propose(seen, self._proposals // 2, self._rng).tolist()))

    def _look(self, trial: TuningTrial) -> None:
        assert trial.candidate is not None
        self._go_on("look")
        began_s = self._clock()
        trial.draft = self._runner.draft(trial.candidate, self._end_s, _DEAR * self._best_hours(lambda one: one.draft))
        self._took_s["look"] = self._clock() - began_s
        if trial.name in (OWN, DEFAULTS):
            self._teach(trial)

    def _teach(self, trial: TuningTrial) -> None:
        """The sampler also learns of trials that it did not ask for."""
        assert trial.candidate is not None
        assert trial.draft is not None
        drawn = self._space.drawn(trial.candidate)
        if self._space.candidate(drawn) != trial.candidate:
            return  # outside of where it looks
        known = optuna.trial.create_trial(
            params=drawn,
            distributions=self._distributions,
            values=self._values(trial.draft),
            constraints=self._broken(trial.draft),
        )
        self._study.add_trial(known)

    def _run_whole(self, trial: TuningTrial, to_the_end: bool = False) -> None:
        self._go_on("run")
        self._say(f"{len(self.trials)} settings looked at; running all of the traffic with settings {trial.name!r}")
        began_s = self._clock()
        hours = math.inf if to_the_end else _DEAR * self._best_hours(lambda one: one.exact)
        trial.exact = self._runner.exact(trial.candidate, self._end_s, hours, to_the_end)
        self._took_s["run"] = self._clock() - began_s

    def _go_on(self, kind: str) -> None:
        """Raises OutOfTime where there is no time for one more of that kind."""
        if self._clock() + self._took_s[kind] > self._end_s:
            raise OutOfTime

    def _values(self, outcome: TrialResult) -> list[float]:
        total = max(1.0, sum(requests for requests, _ in outcome.classes.values()))
        allowed = sum(requests * (1 - self._slos[name]) for name, (requests, _) in outcome.classes.items()) / total
        return [min(1.0 - _ENOUGH * allowed, outcome.merit(self._slos)), outcome.replica_hours]

    def _broken(self, outcome: TrialResult) -> dict[str, float]:
        """By how much a first look misses each class's SLO, with what it overlooks; negative where the SLO is met."""
        gap = correction(self.trials, self._slos).gap
        return {name: self._slos[name] + gap - outcome.attained(name) for name in outcome.classes}

    def _best_hours(self, of: Callable[[TuningTrial], TrialResult | None]) -> float:
        """The fewest hours that meet all SLOs, infinite where none do. A fixed number of replicas is no measure."""
        found = (of(trial) for trial in self.trials if trial.candidate is not None)
        return min(
            (one.replica_hours for one in found if one is not None and not one.stopped and one.slack(self._slos) >= 0),
            default=math.inf,
        )

    def _say(self, text: str) -> None:
        self._tell(text, min(1.0, (self._clock() - self._began_s) / self._budget.seconds))
