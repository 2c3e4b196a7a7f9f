"""What settings are tried on: traffic, engines, promises, and the way in which replicas are counted. All but the settings themselves."""

from dataclasses import dataclass

from autoscaling.forecast.history import History
from autoscaling.from_spec import ScalingSetup
from deployments.engine_model.cost_model import CostModel
from planning.simulator.cell import CellSettings
from planning.simulator.workload import Workload
from planning.tune.load import Load, load_on

_NOTHING = History(0, ())


@dataclass(frozen=True)
class Case:
    """`cell`: with as many replicas as run at the start, and without scaling. `setup`: how the spec scales; what is tried differs in its law's
    settings and its least replicas. `fixed`: so many replicas run now, always, and `setup` is of the law that is tried instead; None: the law
    decides already.

    `history` is what arrived before, as far as it is known, for a forecast.
    """

    work: Workload
    cost: CostModel
    cell: CellSettings
    lanes: tuple[str, ...]
    setup: ScalingSetup
    fixed: int | None = None
    history: History = _NOTHING

    @property
    def span_s(self) -> float:
        """What the traffic stands for: to the last arrival, and one mean gap more."""
        last = float(self.work.arrived_s[-1])
        return last * (1 + 1 / len(self.work))

    def load(self) -> Load:
        """The true load over time."""
        return load_on(self.work, self.setup.plant, self.cost, self.span_s)
