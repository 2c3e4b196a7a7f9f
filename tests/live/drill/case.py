"""What a live drill runs on: a model in several regions, with its engines' costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.spec import ClusterSpec, Model, load_spec
from deployments.accounting.tariffs import usd_per_replica_hour
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.fits import cost_of
from planning.capacity.rates import cell_of
from planning.rehearsal import simulated_capacity
from planning.simulator.workload import plain_workload
from tests.live.drill.drill import RequestShape
from tests.live.drill.findings import DrillSlo

_SAMPLE_ROUNDS = 8
"""A cell's capacity is measured with so many requests for each of its clients."""
_HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True)
class DrillCase:
    """The model that is drilled, with its engines' costs. `rtt_s`: the round trip between any two cells.
    `patience_s`: of clients, with one request."""

    spec: ClusterSpec
    model: Model
    costs: CostFile
    rtt_s: Mapping[frozenset[str], float]
    patience_s: float = 120.0

    @property
    def cells(self) -> tuple[str, ...]:
        """The regions in which the model runs."""
        return tuple(region.name for region in self.spec.regions_of(self.model))

    @property
    def slo(self) -> DrillSlo:
        """Of the spec's first class."""
        first = self.spec.classes[0]
        return DrillSlo(first.ttft_ms / 1e3, first.attainment)

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

    def usd(self, replica_s: Mapping[str, float]) -> float | None:
        """What replicas cost at the prices of their pools or instances; None where none has one."""
        regions = [self.spec.region(name) for name in replica_s]
        prices = {
            region.name: float(
                usd_per_replica_hour(self.spec, self.model, self.spec.pool_of(self.model, region), region)
            )
            for region in regions
        }
        if not any(prices.values()):
            return None
        return sum(prices[name] * seconds for name, seconds in replica_s.items()) / _HOUR_S


def read_case(spec_file: Path, rtt_s: Mapping[frozenset[str], float]) -> DrillCase:
    """The first model of the spec, with the costs that the spec names."""
    spec = load_spec(spec_file)
    model = spec.models[0]
    return DrillCase(spec, model, read_cost_file(Path(str(spec.costs_of(model)))), rtt_s)


def round_trips(cells: Sequence[str], near_s: float, far_s: float) -> Mapping[frozenset[str], float]:
    """The first two cells are near each other, all others far."""
    found = {frozenset((one, other)): far_s for one in cells for other in cells if one != other}
    return found | {frozenset(cells[:2]): near_s}
