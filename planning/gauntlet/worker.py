"""What a process of the gauntlet does: runs, scores, remembers; and the pool of these processes. Each call is one job,
given in plain values, so that it can run anywhere.

Whatever a result depends on is in its key: the code of the world, of the scenario and of the policy, the recordings,
the settings, the draw. A process hears no Ctrl-C, and ends with the process that started it, however that ends.
"""

import math
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
from planning.gauntlet.known_rate import Form, Headroom, outcome, tuned
from planning.gauntlet.memo import Memo, key_of, limits_hash, module_hash, policy_hash, recordings_hash, world_hash
from planning.gauntlet.oracle import Oracle, ScheduleOutcome
from planning.gauntlet.recorded import trace_files
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.results import known_score
from planning.gauntlet.run import failure_of, outcome_of, replica_profile_of, score_of
from planning.gauntlet.scenario import Draw, ScenarioRun
from planning.gauntlet.tuning import search
from planning.scoring import Score

_NEVER_HOURS = 1e6
_JUDGED = ("attainment", "replica_hours", "flaps")


class Worker:
    """Of one process. `memo`: a file that all processes share; `traces`: the folder of recorded traffic."""

    def __init__(self, memo: Path | None, traces: Path | None) -> None:
        self._memo = Memo(memo)
        self._traces = traces
        self._failures: dict[str, None] = {}

    def notes(self) -> list[str]:
        """What somebody should be told of: what went wrong, and was no reason to end."""
        return [*self._failures, *([] if self._memo.trouble is None else [f"--memo {self._memo.trouble}"])]

    def look(self, scenario: str) -> None:
        """Reads what the scenario runs, which takes a while. Raises TracesError."""
        _run(scenario, self._draw(0, True))

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
        """One policy through one run. Raises LawFailedError."""
        key = key_of(
            "policy", self._code_of(scenario), policy, policy_hash(POLICIES[policy]), dict(settings), number, training
        )
        known = known_score(self._memo.get(key))
        if known is None:
            run, target = _run(scenario, self._draw(number, training)), SCENARIOS[scenario].target
            out = outcome_of(run, make_policy(policy, settings, replica_profile_of(run)), target)
            failure = failure_of(out, policy, scenario)
            known = score_of(run, out, target)
            if failure is not None:
                self._failures[failure] = None
                return known  # not remembered: whoever goes on with this run is to be told again
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
        """What the policy that knows the rate needs on top of it to meet the SLO where policies are judged: it is a
        measure, no contestant."""
        key = key_of("headroom", "judged", self._code_of(scenario), limits_hash(), draws)
        known = _known_headroom(self._memo.get(key))
        if known is None:
            runs = [_run(scenario, self._draw(number, False)) for number in range(draws)]
            known = tuned(runs, SCENARIOS[scenario].target)
            self._memo.put(
                key, {"scenario": scenario, "policy": "known rate"}, {"form": known.form.value, "h": known.h}
            )
        return known

    def known_rate(self, scenario: str, headroom: Headroom, number: int) -> Score:
        key = key_of("known rate", self._code_of(scenario), limits_hash(), headroom.form, headroom.h, number)
        return self._limit(key, scenario, "known rate", number, lambda run, target: outcome(run, headroom, target))

    def _limit(
        self, key: str, scenario: str, name: str, number: int, best: Callable[[ScenarioRun, float], ScheduleOutcome]
    ) -> Score:
        """What a schedule made with knowledge of the future comes to on one run."""
        known = known_score(self._memo.get(key))
        if known is None:
            known = best(_run(scenario, self._draw(number, False)), SCENARIOS[scenario].target).score
            self._memo.put(key, {"scenario": scenario, "policy": name, "draw": number}, asdict(known))
        return known

    def _draw(self, number: int, training: bool) -> Draw:
        return Draw(number, training, self._traces)

    def _code_of(self, scenario: str) -> tuple[str, str, str, str, float]:
        """Of the world, and of the scenario: its file, its recordings, its SLO."""
        one = SCENARIOS[scenario]
        return (
            scenario,
            world_hash(),
            module_hash(one.module),
            recordings_hash(trace_files(self._traces, one.reads)),
            one.target,
        )


def _known_headroom(written: Any) -> Headroom | None:
    """The headroom that was written; None where there is none, or something else."""
    try:
        found = Headroom(Form(written["form"]), float(written["h"]))
    except (ValueError, KeyError, TypeError):
        return None
    return found if math.isfinite(found.h) else None


@lru_cache(maxsize=6)
def _run(scenario: str, draw: Draw) -> ScenarioRun:
    return SCENARIOS[scenario].runs(draw)


@dataclass(frozen=True, slots=True)
class Done:
    """What a job found, and what its process has to tell (all of it, each time)."""

    result: Any
    notes: list[str]


class Processes:
    """A context. Where it is left by an exception, nobody waits for what is being run: the processes end at once.

    Each holds an end of a pipe of which only this process holds the other.
    """

    def __init__(self, jobs: int, memo: Path | None, traces: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._reader, self._writer = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(jobs, context, _begin, (memo, traces, self._reader))

    def submit(self, call: str, arguments: tuple[Any, ...]) -> Future[Done]:
        """Has a worker's method called. A process that starts for it hears no Ctrl-C, which reaches every process of a
        terminal: what is blocked here stays blocked there."""
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
    """Ends this process at once when nobody holds the other end any more. A line of the memo that this cuts off is
    passed over by its readers."""
    parent.poll(None)
    os._exit(1)


def _do(call: str, arguments: tuple[Any, ...]) -> Done:
    assert _worker is not None
    return Done(getattr(_worker, call)(*arguments), _worker.notes())
