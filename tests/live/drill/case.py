"""What a live drill runs on: a model in several regions, with its engines' costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.spec import ClusterSpec, Model, load_spec
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.fits import cost_of
from planning.capacity.rates import cell_of
from planning.rehearsal import simulated_capacity
from planning.simulator.workload import plain_workload
from tests.live.drill.drill import RequestShape

_SAMPLE_ROUNDS = 8
"""A cell's capacity is measured with so many requests for each of its clients."""


@dataclass(frozen=True, slots=True)
class DrillCase:
    """The model that is drilled, with its engines' costs. `rtt_s`: the round trip between any two cells."""

    spec: ClusterSpec
    model: Model
    costs: CostFile
    rtt_s: Mapping[frozenset[str], float]

    @property
    def cells(self) -> tuple[str, ...]:
        """The regions in which the model runs."""
        return tuple(region.name for region in self.spec.regions_of(self.model))

    def capacity(self, shape: RequestShape) -> float:
        """Requests a second that one cell gets through when there is always something to do."""
        alone = self.spec.model_copy(update={"models": (self.model,)})
        settings = cell_of(alone, self.model, self.costs, max(1, self.model.replicas.count))
        clients = 2 * settings.replicas * settings.limits.sequences
        rng = np.random.default_rng(0)
        count = _SAMPLE_ROUNDS * clients
        prompt, output = shape.prompt.sample(count, rng), shape.output.sample(count, rng)
        work = plain_workload(np.zeros(count), prompt, output, shape.slo_s)
        return simulated_capacity(settings, cost_of(self.model, self.costs), work, clients)


def read_case(spec_file: Path, rtt_s: Mapping[frozenset[str], float]) -> DrillCase:
    """The first model of the spec, with the costs that the spec names."""
    spec = load_spec(spec_file)
    model = spec.models[0]
    return DrillCase(spec, model, read_cost_file(Path(str(spec.costs_of(model)))), rtt_s)


def round_trips(cells: Sequence[str], near_s: float, far_s: float) -> Mapping[frozenset[str], float]:
    """The first two cells are near each other, all others far."""
    found = {frozenset((one, other)): far_s for one in cells for other in cells if one != other}
    return found | {frozenset(cells[:2]): near_s}
