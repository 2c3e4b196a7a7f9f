"""The contract of a scenario: what happens to a model's replicas, and the SLO meanwhile.

To add one, write a file in `scenarios/` and its name in `registry.py`; the conformance suite
(`tests/planning/gauntlet/test_scenarios.py`) and every policy then run it. A scenario's runs are drawn: the same draw
gives the same run, for every policy.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.serving import LoadCurve, Serving
from planning.simulator.faults import ScalingFaults
from planning.simulator.fleet import FleetEvent
from planning.simulator.workload import Workload

USD_PER_REPLICA_HOUR = 2.5
NO_FAULTS = ScalingFaults()


@dataclass(frozen=True, slots=True)
class Draw:
    """Which run of a scenario: its number, whether policies are tuned on it (they are judged on others), and the folder
    of recorded traffic, which only some scenarios need."""

    number: int
    training: bool = False
    traces: Path | None = None

    def rng(self, scenario: str) -> np.random.Generator:
        return np.random.default_rng([zlib.crc32(scenario.encode()), self.number, int(self.training)])


@dataclass(frozen=True, slots=True, eq=False)
class ScenarioRun:
    """One run. Times are in seconds from its start.

    `load`: the expected load, in replicas; the known-rate baseline uses it. `followed`: the part of it that replicas
    can follow (None: all); two changes of the number within ten minutes without a change of that part are a flap.
    `start_up_s`: of each replica that starts, in order, the last for all further ones; policies know the first
    beforehand. `fleet`: failures of replicas; `faults`: what goes wrong around the autoscaler.
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
    faults: ScalingFaults = NO_FAULTS
    usd_per_replica_hour: float = USD_PER_REPLICA_HOUR


@dataclass(frozen=True, slots=True)
class Scenario:
    """`complaint`: whose problem it represents. `target`: the attainment that the SLO asks for.

    `held_out`: how many runs there are to judge on (None: any number). `reads`: the recorded files that its runs use; a
    stored result is valid only while they are the same. A name without its ending matches any. `long`: a run takes many
    seconds, so it runs only if named, or in a thorough gauntlet. `day`: unchanged recorded traffic, which counts in the
    totals. `tuned_on`: policies use the settings that they found in that scenario. `sweep`: the name and value of the
    only figure in which several scenarios differ.
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
        """The module that makes its runs; a member of a family is a partial function."""
        runs: Any = self.runs
        return str(getattr(runs, "func", runs).__module__)
