"""A process of the gauntlet, which runs, scores and remembers; and the pool of these processes. Each call is one job
with plain arguments, so it can run in any process.

A result's key holds everything that it depends on: the code of the simulator, the scenario and the policy, the
recordings, the settings, the draw. A process ignores Ctrl-C, and ends with the process that started it.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from autoscaling.policies.registry import POLICIES, make_policy
from autoscaling.policies.settings import PolicyError, Value
from planning.gauntlet.frontier import TriedSettings
from planning.gauntlet.known_rate import Headroom, outcome, tuned
from planning.gauntlet.memo import Memo, key_of, limits_hash, module_hash, policy_hash, recordings_hash, world_hash
from planning.gauntlet.oracle import Oracle, ScheduleOutcome
from planning.gauntlet.recorded import trace_files
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.run import failure_of, outcome_of, replica_profile_of, score_of
from planning.gauntlet.scenario import Draw, ScenarioRun
from planning.gauntlet.tuning import search
from planning.scoring import Score

_NEVER_HOURS = 1e6
_JUDGED = ("attainment", "replica_hours", "flaps")


class Worker:
    """`memo`: a file that all processes share; `traces`: the folder of recorded traffic."""

    def __init__(self, memo: Path | None, traces: Path | None) -> None:
        self._memo = Memo(memo)
        self._traces = traces
        self._failures: dict[str, None] = {}

    def notes(self) -> list[str]:
        """What went wrong without ending the run."""
        return [*self._failures, *([] if self._memo.trouble is None else [f"--memo {self._memo.trouble}"])]

    def look(self, scenario: str) -> tuple[str, ...]:
        """Reads the scenario's recordings, which takes a while: what a run changes in them. Raises TracesError."""
        return tuple(map(str, _run(scenario, self._draw(0, False)).workload.changes))

    def tune(self, scenario: str, policy: str, trials: int, draws: int) -> list[TriedSettings]:
        target = SCENARIOS[scenario].target

        def judge(settings: Mapping[str, Value]) -> TriedSettings:
            try:
                scores = [self.score(scenario, policy, settings, number, training=True) for number in range(draws)]
            except PolicyError:  # settings that do not go together
                return TriedSettings(settings, 0.0, _NEVER_HOURS)
            return TriedSettings(
                settings, *(float(np.mean([getattr(one, name) for one in scores])) for name in _JUDGED)
            )

        slos_s = _run(scenario, self._draw(0, True)).workload.ttft_slo_s
        return search(POLICIES[policy], target, trials, 0, judge, float(slos_s.min()) if len(slos_s) else None)

    def score(
        self, scenario: str, policy: str, settings: Mapping[str, Value], number: int, training: bool = False
    ) -> Score:
        """One policy through one run. Raises PolicyFailedError."""
        key = key_of(
            "policy", self._code_of(scenario), policy, policy_hash(POLICIES[policy]), dict(settings), number, training
        )
        known = self._memo.get_as(Score, key)
        if known is None:
            run, target = _run(scenario, self._draw(number, training)), SCENARIOS[scenario].target
            out = outcome_of(run, make_policy(policy, settings, replica_profile_of(run)), target)
            failure = failure_of(out, policy, scenario)
            known = score_of(run, out, target)
            if failure is not None:
                self._failures[failure] = None
                return known  # not remembered, so that a resumed run reports it again
            about = {
                "scenario": scenario,
                "policy": policy,
                "settings": dict(settings),
                "draw": number,
                "training": training,
            }
            self._memo.put(key, about, asdict(known))
        return known

    def oracle(self, scenario: str, number: int, sims: int) -> Score:
        key = key_of("oracle", self._code_of(scenario), limits_hash(), number, sims)
        return self._limit(key, scenario, "oracle", number, lambda run, target: Oracle(run, target, sims).best())

    def headroom(self, scenario: str, draws: int) -> Headroom:
        """The smallest headroom with which the known-rate baseline meets the SLO on the judged runs."""
        key = key_of("headroom", "judged", self._code_of(scenario), limits_hash(), draws)
        known = self._memo.get_as(Headroom, key)
        if known is None:
            runs = [_run(scenario, self._draw(number, False)) for number in range(draws)]
            known = tuned(runs, SCENARIOS[scenario].target)
            self._memo.put(key, {"scenario": scenario, "policy": "known rate"}, asdict(known))
        return known

    def known_rate(self, scenario: str, headroom: Headroom, number: int) -> Score:
        key = key_of("known rate", self._code_of(scenario), limits_hash(), headroom.form, headroom.h, number)
        return self._limit(key, scenario, "known rate", number, lambda run, target: outcome(run, headroom, target))

    def _limit(
        self, key: str, scenario: str, name: str, number: int, best: Callable[[ScenarioRun, float], ScheduleOutcome]
    ) -> Score:
        """The score of a baseline on one run."""
        known = self._memo.get_as(Score, key)
        if known is None:
            known = best(_run(scenario, self._draw(number, False)), SCENARIOS[scenario].target).score
            self._memo.put(key, {"scenario": scenario, "policy": name, "draw": number}, asdict(known))
        return known

    def _draw(self, number: int, training: bool) -> Draw:
        return Draw(number, training, self._traces)

    def _code_of(self, scenario: str) -> tuple[str, str, str, str, float]:
        """Hashes of the simulator and of the scenario: its file, its recordings, its SLO."""
        one = SCENARIOS[scenario]
        return (
            scenario,
            world_hash(),
            module_hash(one.module),
            recordings_hash(trace_files(self._traces, one.reads)),
            one.target,
        )


@lru_cache(maxsize=6)
def _run(scenario: str, draw: Draw) -> ScenarioRun:
    return SCENARIOS[scenario].runs(draw)


@dataclass(frozen=True, slots=True)
class Done:
    """A job's result, and all notes of its process."""

    result: Any
    notes: list[str]


class Processes:
    """A context. If an exception leaves it, the processes end at once. They notice by a pipe of which only this process
    holds the other end.
    """

    def __init__(self, jobs: int, memo: Path | None, traces: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._reader, self._writer = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(jobs, context, _begin, (memo, traces, self._reader))

    def submit(self, call: str, arguments: tuple[Any, ...]) -> Future[Done]:
        """Calls a worker's method. Ctrl-C reaches every process of a terminal, so SIGINT is blocked meanwhile; a
        process that starts for this job inherits that."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(_do, call, arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._writer.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown()
        self._writer.close()
        self._reader.close()


_worker: Worker | None = None


def _begin(memo: Path | None, traces: Path | None, parent: Connection) -> None:
    global _worker
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _worker = Worker(memo, traces)


def _end_with(parent: Connection) -> None:
    """Ends this process at once when the other end is closed. Readers of the memo skip a line that this cuts off."""
    parent.poll(None)
    os._exit(1)


def _do(call: str, arguments: tuple[Any, ...]) -> Done:
    assert _worker is not None
    return Done(getattr(_worker, call)(*arguments), _worker.notes())
