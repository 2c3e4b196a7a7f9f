"""Runs a plan as jobs in processes, and collects their results.

For each scenario and policy: tune, then judge the frontier on the held-out runs. For each scenario: find the headroom
of the known-rate baseline on these runs, then judge it. For each run: the oracle. Otherwise jobs do not depend on each
other.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from autoscaling.policies.registry import POLICIES
from autoscaling.policies.settings import Value
from planning.gauntlet.frontier import TriedSettings, frontier, pick
from planning.gauntlet.known_rate import HALVINGS, Form, Headroom
from planning.gauntlet.memo import limits_hash, policy_hash, world_hash
from planning.gauntlet.recorded import NoTracesError, trace_files
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.results import GauntletPlan, Point, PolicyResult, Results, ScenarioResult
from planning.gauntlet.scenario import Scenario
from planning.gauntlet.worker import Processes
from planning.scoring import Score

_LONG = 15.0
"""The duration of a run of a long scenario, in runs of an ordinary one."""
_HEADROOM_SIMS = len(Form) * (HALVINGS + 1)

Progress = Callable[[float, float, str], None]
"""Work done, work in all (in runs of an ordinary scenario), and what was done last."""
Warned = Callable[[str], None]
"""What went wrong without ending the run, once each."""


@dataclass(frozen=True, slots=True)
class _Job:
    """`call`: a method of the worker; `size`: in runs; `then` takes the result and may return more jobs."""

    what: str
    size: float
    call: str
    arguments: tuple[Any, ...]
    then: Callable[[Any], Iterable["_Job"]]


class Gauntlet:
    def __init__(self, plan: GauntletPlan) -> None:
        self._plan = plan
        self._tried: dict[tuple[str, str], list[TriedSettings]] = {}
        self._scores: dict[tuple[str, str, int, int], Score] = {}
        self._oracles: dict[tuple[str, int], Score] = {}
        self._known: dict[tuple[str, int], Score] = {}
        self._left_out: dict[str, str] = {}
        self._changes: dict[str, tuple[str, ...]] = {}
        self._runnable = [SCENARIOS[name] for name in plan.scenarios if self._can_run(SCENARIOS[name])]

    def run(self, reported: Progress = lambda *_: None, warned: Warned = lambda _: None) -> Results:
        """Raises TracesError at once if a recording cannot be run, and PolicyFailedError for a policy that fails at
        every decision."""
        done = 0.0
        total = self._expected()
        notes: set[str] = set()
        with Processes(self._plan.jobs, self._plan.memo, self._plan.traces) as processes:
            self._look(processes)
            running = {processes.submit(job.call, job.arguments): job for job in self._first()}
            while running:
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    job, found = running.pop(future), future.result()
                    for note in found.notes:
                        if note not in notes:
                            notes.add(note)
                            warned(note)
                    for more in job.then(found.result):
                        running[processes.submit(more.call, more.arguments)] = more
                    done += job.size
                    reported(done, max(total, done), job.what)
        return self._together()

    def _can_run(self, scenario: Scenario) -> bool:
        try:
            trace_files(self._plan.traces, scenario.reads)
        except NoTracesError as error:
            self._left_out[scenario.name] = str(error)
            return False
        return True

    def _look(self, processes: Processes) -> None:
        """Reads each recording before anything runs, so that a bad one is reported now and not hours later."""
        looks = {one.name: processes.submit("look", (one.name,)) for one in self._runnable if one.reads}
        self._changes = {name: look.result().result for name, look in looks.items()}

    def _runs(self, scenario: Scenario) -> int:
        return self._plan.held_out if scenario.held_out is None else min(self._plan.held_out, scenario.held_out)

    def _training(self, scenario: Scenario) -> int:
        """A recorded day has enough variety to tune on, and takes 20 s a run."""
        return 1 if scenario.long else self._plan.training

    def _expected(self) -> float:
        """An estimate of all runs; frontiers are seldom full."""
        plan = self._plan
        tuned = [SCENARIOS[name] for name in self._judged()]
        total = sum(_size(one) * plan.trials * len(plan.policies) * self._training(one) for one in tuned)
        each = plan.points * len(plan.policies) + _HEADROOM_SIMS + 1 + plan.sims
        return total + sum(_size(one) * each * self._runs(one) for one in self._runnable)

    def _judged(self) -> dict[str, list[Scenario]]:
        """For each scenario that policies are tuned on, those that use the settings found there."""
        judged: dict[str, list[Scenario]] = {}
        for one in self._runnable:
            judged.setdefault(one.tuned_on or one.name, []).append(one)
        return judged

    def _first(self) -> Iterable[_Job]:
        plan = self._plan
        judged = self._judged()
        for name in sorted(judged, key=lambda name: -_size(SCENARIOS[name])):
            training = self._training(SCENARIOS[name])
            size = _size(SCENARIOS[name]) * training
            for policy in plan.policies:
                then = partial(self._tuned, name, policy, judged[name])
                yield _Job(
                    f"{name}: {policy} tuned", size * plan.trials, "tune", (name, policy, plan.trials, training), then
                )
        for one in sorted(self._runnable, key=lambda one: -_size(one)):
            size, runs = _size(one), self._runs(one)
            yield _Job(
                f"{one.name}: known rate",
                size * _HEADROOM_SIMS * runs,
                "headroom",
                (one.name, runs),
                partial(self._headroom, one),
            )
            for number in range(runs):
                keep = partial(_kept, self._oracles, (one.name, number))
                yield _Job(f"{one.name}: oracle", plan.sims * size, "oracle", (one.name, number, plan.sims), keep)

    def _tuned(self, name: str, policy: str, judged: list[Scenario], tried: list[TriedSettings]) -> Iterable[_Job]:
        self._tried[name, policy] = tried
        for one in judged:
            for index, point in enumerate(self._frontier(one, policy)):
                for number in range(self._runs(one)):
                    keep = partial(_kept, self._scores, (one.name, policy, index, number))
                    yield _Job(
                        f"{one.name}: {policy}",
                        _size(one),
                        "score",
                        (one.name, policy, dict(point.settings), number),
                        keep,
                    )

    def _headroom(self, one: Scenario, headroom: Headroom) -> Iterable[_Job]:
        for number in range(self._runs(one)):
            keep = partial(_kept, self._known, (one.name, number))
            yield _Job(f"{one.name}: known rate", _size(one), "known_rate", (one.name, headroom, number), keep)

    def _frontier(self, scenario: Scenario, policy: str) -> list[TriedSettings]:
        name = scenario.tuned_on or scenario.name
        return frontier(self._tried[name, policy], SCENARIOS[name].target, self._plan.points)

    def _together(self) -> Results:
        plan = self._plan
        contests = []
        for one in self._runnable:
            numbers = range(self._runs(one))
            contenders = []
            for policy in plan.policies:
                tried = self._frontier(one, policy)
                chosen = tried.index(pick(tried, SCENARIOS[one.tuned_on or one.name].target))
                points = [
                    self._point(one.name, policy, index, point.settings, numbers) for index, point in enumerate(tried)
                ]
                contenders.append(PolicyResult(policy, tuple(points), chosen))
            oracle = tuple(self._oracles[one.name, number] for number in numbers)
            known = tuple(self._known[one.name, number] for number in numbers)
            contests.append(
                ScenarioResult(one.name, one.target, tuple(contenders), oracle, known, self._changes.get(one.name, ()))
            )
        about: dict[str, Any] = {
            name: getattr(plan, name) for name in ("trials", "training", "held_out", "points", "sims")
        }
        about |= {"version": version("raylane"), "world": world_hash(), "limits": limits_hash()}
        about["policies"] = {policy: policy_hash(POLICIES[policy]) for policy in plan.policies}
        return Results(about, tuple(contests), self._left_out)

    def _point(self, scenario: str, policy: str, index: int, settings: Mapping[str, Value], numbers: range) -> Point:
        return Point(settings, tuple(self._scores[scenario, policy, index, number] for number in numbers))


def _size(scenario: Scenario) -> float:
    return _LONG if scenario.long else 1.0


def _kept(place: dict[Any, Score], key: Any, score: Score) -> Iterable[_Job]:
    place[key] = score
    return ()
