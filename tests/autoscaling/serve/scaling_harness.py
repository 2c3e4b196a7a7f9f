"""One model's scaling turn by turn: with the production scheduler as the cell that it looks at, Serve's part run by a
handover that obeys."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoscaling.forecast.forecaster import Forecaster
from autoscaling.serve.facts import ModelFacts
from autoscaling.serve.handover import Handover
from autoscaling.serve.room import Node
from autoscaling.serve.scaling import ModelScaling
from cluster.node_labels import EVERY_POOL
from cluster.spec import ClusterSpec
from deployments.cell.listing import Listing
from deployments.cell.orders import OperatorOrders
from deployments.cell.scaling_facts import ScalingFacts, read_scaling_facts
from deployments.cell.scaling_state import ScalingState
from deployments.scheduling import Capacity, Ending, Request, Scheduler
from deployments.scheduling.policy import policy_of
from deployments.starts.start import CellStarts
from deployments.wire import encode
from tests.autoscaling.setups import spec_of


class Cell:
    """Stands for `autoscaling.serve.cell.Cell`: a real scheduler, a real order book, and no Ray in between."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.scheduler = Scheduler(policy_of(spec))
        self.book = OperatorOrders()
        self.spec_json: str | None = None
        self.states: list[ScalingState] = []
        self.rollbacks: list[str] = []
        self.visible, self.late_s = True, 0.0
        self.page: dict[str, Any] = {}
        """What the owner's page says otherwise than usual, and how long ago it was read."""
        self.closed = False
        self.listing: Listing | None = None
        self.scaling_facts: ScalingFacts | None = None
        self.nodes = (Node("a", {"CPU": 64.0, "GPU": 8.0, "accelerator_type:H100": 1.0}, EVERY_POOL),)
        self.age_s = 0.0
        self.starts = CellStarts()
        self._requests = 0

    def look(self) -> None:
        self.listing = Listing(1, (), self.spec_json, orders=self.book.orders(time.time()), starts=self.starts)
        if self.visible:
            snapshot = self.scheduler.snapshot(time.monotonic())
            page = replace(ScalingFacts("m", 1, 0.0, snapshot, {}), **self.page)
            self.scaling_facts = read_scaling_facts(encode(page))
        self.age_s = self.late_s if self.visible else 99.0

    def publish(self, state: ScalingState) -> None:
        self.states.append(state)

    def spec(self) -> bytes:
        return (self.spec_json or "").encode()

    def roll_back(self, why: str) -> None:
        self.rollbacks.append(why)

    def close(self) -> None:
        self.closed = True

    def replicas(self, number: int) -> None:
        """So many are ready."""
        for index in range(number):
            self.scheduler.replica_up(f"r{index}", Capacity(32, 8, 200_000, 2048, 2), time.monotonic())

    def burst(self, count: int) -> None:
        """So many requests arrive, and wait where there is no room."""
        for _ in range(count):
            self._requests += 1
            now = time.monotonic()
            self.scheduler.submit(Request(f"q{self._requests}", 2_000, 200, now, now + 1.0, now + 600.0), now)
        self.scheduler.step(time.monotonic())

    def answer_late(self) -> None:
        """What runs gets its first token long after its SLO, and ends."""
        now = time.monotonic()
        for lease, _ in list(self.scheduler.leases.values()):
            self.scheduler.first_token(lease, lease.request.deadline_s + 60.0)
            self.scheduler.release(lease, Ending.FINISHED, None, now)
        self.scheduler.step(now)


class ScalingHarness:
    """One model's scaling, turn by turn."""

    def __init__(self, folder: Path, ready: int, forecaster: Forecaster | None = None, **given: Any) -> None:
        self.spec = spec_of(**{"period_s": 0.2, **given})
        self.cell = Cell(self.spec)
        self.cell.replicas(ready)
        self.handover = Handover()
        self.target = self.handover.tick(ready)
        facts = ModelFacts(self.spec.model_dump_json(), "m", "here")
        self.scaling = ModelScaling(facts, self.cell, self.handover, folder, forecaster)  # type: ignore[arg-type]

    def turn(self) -> ScalingState:
        """After the time in which it should come."""
        if self.cell.states:
            time.sleep(self.scaling.turn_s)
        self.scaling.turn()
        for _ in range(3):
            self.target = self.handover.tick(self.target)
        return self.cell.states[-1]

    def apply(self, **given: Any) -> None:
        self.cell.spec_json = spec_of(**{"period_s": 0.2, **given}).model_dump_json()


Run = Callable[..., ScalingHarness]
"""Begins one; the test's end closes it."""
