"""Two groups of a model scale live, each in its own thread of turns: by what each is to carry, as the other one has
reported; each with a log of its own that replays."""

import time
from pathlib import Path
from typing import Any

from autoscaling.serve.facts import ModelFacts
from autoscaling.serve.handover import Handover
from autoscaling.serve.room import Node, schedulable
from autoscaling.serve.scaling import ModelScaling
from cluster.node_labels import EVERY_POOL
from cluster.spec import ClusterSpec
from deployments.cell.listing import Listing
from deployments.cell.scaling_state import ScalingState, ScalingStates
from deployments.decisions import Header
from deployments.protocol import ReplicaFacts
from deployments.scheduling import Capacity, Scheduler
from deployments.scheduling.policy import policy_of
from tests.autoscaling.serve.scaling_harness import Cell
from tests.autoscaling.setups import entries_of, replayed, spec_of

CONTEXTS = {"small": 4_096, "large": 8_192}


def grouped(maximum: int, **replicas: int) -> ClusterSpec:
    """The small group has at most so many replicas."""
    plain = spec_of(period_s=0.2).model_dump(mode="json")
    bounds = {"small": {"count": 1, "min": 1, "max": maximum, **replicas}, "large": {"count": 1, "min": 1, "max": 8}}
    groups: list[dict[str, Any]] = [
        {"name": name, "settings": {"max_model_len": context}, "replicas": bounds[name]}
        for name, context in CONTEXTS.items()
    ]
    (model,) = plain["models"]
    lanes = {"short": ["small", "large"], "medium": ["small", "large"], "long": ["small", "large"]}
    return ClusterSpec.model_validate({**plain, "models": [{**model, "groups": groups, "lanes": lanes}]})


class GroupCell(Cell):
    """The cell as the policy of one group sees it; all share the scheduler and the directory's states."""

    def __init__(self, spec: ClusterSpec, scheduler: Scheduler, directory: ScalingStates) -> None:
        super().__init__(spec)
        self.scheduler = scheduler
        self._directory = directory

    def look(self) -> None:
        super().look()
        scaling = self._directory.scaling()
        self.listing = Listing(1, (), self.spec_json, orders=self.book.orders(time.time()), scaling=scaling)

    def publish(self, state: ScalingState) -> None:
        super().publish(state)
        self._directory.take(state)


class Groups:
    """A replica of each group is ready, and each group's policy has its turns."""

    def __init__(self, folder: Path, spec: ClusterSpec) -> None:
        self.scheduler = Scheduler(policy_of(spec, spec.models[0], spec.regions[0]))
        self.directory = ScalingStates()
        self.cells = {name: GroupCell(spec, self.scheduler, self.directory) for name in CONTEXTS}
        self._targets = dict.fromkeys(CONTEXTS, 1)
        self._handovers = {name: Handover() for name in CONTEXTS}
        self.scalings: dict[str, ModelScaling] = {}
        for name, context in CONTEXTS.items():
            self._handovers[name].tick(1)
            facts = ModelFacts(spec.model_dump_json(), f"m@{name}", "here")
            self.scalings[name] = ModelScaling(facts, self.cells[name], self._handovers[name], folder)  # type: ignore[arg-type]
            self.scheduler.replica_up(name, Capacity(8, 2, 200_000, 2048, 2, name, context), time.monotonic())

    def turn(self) -> dict[str, ScalingState]:
        """Of the small group first."""
        if self.cells["small"].states:
            time.sleep(0.2)
        for name, scaling in self.scalings.items():
            scaling.turn()
            for _ in range(3):
                self._targets[name] = self._handovers[name].tick(self._targets[name])
        return {name: cell.states[-1] for name, cell in self.cells.items()}


def test_the_first_group_grows_and_the_next_one_by_the_rest(tmp_path: Path) -> None:
    groups = Groups(tmp_path, grouped(1))
    calm = groups.turn()
    assert {name: (state.model, state.requested) for name, state in calm.items()} == {
        "small": ("m@small", 1),
        "large": ("m@large", 1),
    }
    groups.cells["small"].burst(200)
    busy = groups.turn()
    assert (busy["small"].requested, busy["small"].reason) == (1, "max_replicas")
    assert 0.0 < busy["small"].overflow < 1.0
    assert busy["large"].requested > 1
    for scaling in groups.scalings.values():
        scaling.close()
    for name in CONTEXTS:
        header, *rest = entries_of(tmp_path, f"m@{name}")
        assert isinstance(header, Header)
        assert header.model == f"m@{name}"
        assert replayed([header, *rest]).difference is None


def test_the_next_group_does_not_grow_while_the_first_one_may(tmp_path: Path) -> None:
    groups = Groups(tmp_path, grouped(8))
    groups.turn()
    groups.cells["small"].burst(200)
    for _ in range(3):
        busy = groups.turn()
    assert busy["small"].requested > 1
    assert (busy["small"].overflow, busy["large"].requested) == (0.0, 1)
    for scaling in groups.scalings.values():
        scaling.close()


def test_replicas_of_another_group_take_room() -> None:
    spec = grouped(8)
    nodes = [Node("a", {"CPU": 64.0, "GPU": 8.0, "accelerator_type:H100": 1.0}, EVERY_POOL)]
    there = [ReplicaFacts(f"r{n}", "m", "", 1, "a", "generate", 100, 1, 16, 1, "large") for n in range(3)]
    assert schedulable(spec, spec.view("m@small"), spec.regions[0], nodes, there) == 5
    assert schedulable(spec, spec.view("m@large"), spec.regions[0], nodes, there) == 8
