"""The contract of a scenario: what happens to a model's replicas, and what is promised meanwhile.

Whoever adds one writes a file in `scenarios/` and its name in `registry.py`; the conformance suite
(`tests/planning/gauntlet/test_scenarios.py`) and every policy meet it from there on. A scenario's runs are drawn: the
same draw gives the same run, for every policy.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.serving import LoadCurve, Serving
from planning.simulator.faults import Faults
from planning.simulator.fleet import FleetEvent
from planning.simulator.workload import Workload

USD_PER_REPLICA_HOUR = 2.5
NO_FAULTS = Faults()


@dataclass(frozen=True, slots=True)
class Draw:
    """Which run of a scenario: its number, whether policies are tuned on it (no policy is judged on one that any was
    tuned on), and where recorded traffic lies (None: nowhere; only scenarios that read some want it)."""

    number: int
    training: bool = False
    traces: Path | None = None

    def rng(self, scenario: str) -> np.random.Generator:
        return np.random.default_rng([zlib.crc32(scenario.encode()), self.number, int(self.training)])


@dataclass(frozen=True, slots=True, eq=False)
class ScenarioRun:
    """One run's world. Seconds from its start.

    `load`: what was to be expected, in replicas' worth; the best policy that knows the rate goes by it. `followed`:
    what replicas can follow of it (None: all): two changes of the number within ten minutes without a change of that
    are a flap. `start_up_s` of each replica that starts, in their order, the last for all further; policies are told
    the first beforehand. `fleet`: what befalls replicas; `faults`: what goes wrong around the autoscaler.
    """

    serving: Serving
    workload: Workload
    load: LoadCurve
    bounds: Bounds
    replicas: int
    until_s: float
    start_up_s: tuple[float, ...] = (60.0,)
    followed: LoadCurve | None = None
    fleet: tuple[FleetEvent, ...] = ()
    faults: Faults = NO_FAULTS
    usd_per_replica_hour: float = USD_PER_REPLICA_HOUR


@dataclass(frozen=True, slots=True)
class Scenario:
    """`complaint`: whose trouble it stands for. `target`: the share of first tokens in time that is promised.

    `held_out`: as many runs as there are to be judged on (None: any number). `reads`: the recorded files that its runs
    are made of, all of them: a result counts only while they are the same. A name without its ending stands for any.
    `long`: takes many seconds a run, so it runs only when it is named, or in a thorough gauntlet. `day`: recorded
    traffic as it was, which counts in the totals. `tuned_on`: policies bring the settings that they found in that
    scenario, instead of looking for new ones. `sweep`: the figure and its value where several scenarios differ in
    nothing else.
    """

    name: str
    title: str
    complaint: str
    target: float
    runs: Callable[[Draw], ScenarioRun]
    held_out: int | None = None
    reads: tuple[str, ...] = ()
    long: bool = False
    day: bool = False
    tuned_on: str | None = None
    sweep: tuple[str, float] | None = None

    @property
    def needs_traces(self) -> bool:
        return bool(self.reads)

    @property
    def module(self) -> str:
        """Where its runs are made; one of a family is a partial function."""
        runs: Any = self.runs
        return str(getattr(runs, "func", runs).__module__)
