"""How far the costs of steps may be off, by what they rest on, and what that does to an answer.

An answer's range comes from two more runs of the same traffic, with all costs at the lowest and at the highest likely
multiple of what the file says: a queue makes more of an error than it is, so an answer cannot be scaled. Policies go on
believing the file, as they would live.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.spec import Model, Pool
from deployments.engine_model.cost_file import CostBasis, CostFile
from deployments.engine_model.fits import names_accelerator
from planning.simulator.outcome import Figures

RELATIVE_RANGE: Mapping[CostBasis, float] = {
    CostBasis.CALIBRATED: 0.05,
    CostBasis.PROFILE: 0.10,
    CostBasis.OTHER_PROFILE: 0.25,
    CostBasis.DATA_SHEET: 0.40,
}
"""By how much the time of a step may be off either way where the file does not name the sources of its parts."""


@dataclass(frozen=True, slots=True)
class CostRange:
    """The true costs likely lie between `low` and `high` times those of the file."""

    origin: CostBasis
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"costs from a {self.origin}" if self.origin is not CostBasis.CALIBRATED else "costs calibrated here"
        ) + f", likely {_percent(self.low)} to {_percent(self.high)}"


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def cost_range(cost: CostFile, model: Model, pool: Pool) -> CostRange:
    """How far the costs may be off for that model on that pool's GPUs."""
    origin = _origin(cost, model, pool)
    relative = RELATIVE_RANGE[origin]
    low, high = 1 - relative, 1 + relative
    if cost.sources and origin is not CostBasis.OTHER_PROFILE:
        low, high = cost.likely()
    return CostRange(origin, low, high)


def _origin(cost: CostFile, model: Model, pool: Pool) -> CostBasis:
    if cost.basis == "roofline":
        return CostBasis.DATA_SHEET
    if cost.basis == "measured" and cost.model == model.name:
        return CostBasis.CALIBRATED
    elsewhere = pool.accelerator != "cpu" and not names_accelerator(cost.hardware, pool.accelerator)
    return CostBasis.OTHER_PROFILE if elsewhere or cost.model != model.name else CostBasis.PROFILE


Range = tuple[float, float]

RANGED = (
    "rejected",
    "expired",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "queued_mean_ms",
    "answered_in_time",
)
"""The figures that have a range."""


def ranges(runs: Sequence[Sequence[Figures]]) -> list[dict[str, Range]]:
    """Of each line of figures the lowest and the highest value among the runs (the one that is reported, and those with
    the costs at their ends); a figure that some run does not have has no range."""
    found = []
    for lines in zip(*runs, strict=True):
        values = {name: [float(getattr(line, name)) for line in lines] for name in RANGED}
        found.append({name: (min(all_), max(all_)) for name, all_ in values.items() if all(one == one for one in all_)})
    return found
