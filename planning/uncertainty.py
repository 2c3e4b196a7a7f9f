"""How far the costs of steps may be off, by what they rest on, and what that does to an answer.

An answer's range comes from two more runs of the same traffic, with all costs at the lowest and at the highest likely
multiple of what the file says: a queue makes more of an error than it is, so an answer cannot be scaled. Policies go on
believing the file, as they would live.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cluster.spec import Model, Pool
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.fits import names_accelerator
from planning.simulator.outcome import Figures


class CostOrigin(StrEnum):
    """What the costs rest on, as seen from the spec."""

    CALIBRATED = "calibrated here"
    PROFILE = "profile of this GPU"
    OTHER_PROFILE = "profile of another GPU"
    DATA_SHEET = "data sheet"


RELATIVE_RANGE: Mapping[CostOrigin, float] = {
    CostOrigin.CALIBRATED: 0.05,
    CostOrigin.PROFILE: 0.10,
    CostOrigin.OTHER_PROFILE: 0.25,
    CostOrigin.DATA_SHEET: 0.40,
}
"""By how much the time of a step may be off either way (docs/simulator.md says what each rests on)."""


@dataclass(frozen=True, slots=True)
class CostRange:
    """The true costs likely lie between `low` and `high` times those of the file."""

    origin: CostOrigin
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"costs from a {self.origin}" if self.origin is not CostOrigin.CALIBRATED else "costs calibrated here"
        ) + f", likely {_percent(self.low)} to {_percent(self.high)}"

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {"origin": self.origin.value, "low": self.low, "high": self.high}


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def cost_range(cost: CostFile, model: Model, pool: Pool) -> CostRange:
    """How far the costs may be off for that model on that pool's GPUs."""
    origin = _origin(cost, model, pool)
    relative = RELATIVE_RANGE[origin]
    return CostRange(origin, 1 - relative, 1 + relative)


def _origin(cost: CostFile, model: Model, pool: Pool) -> CostOrigin:
    if cost.basis == "roofline":
        return CostOrigin.DATA_SHEET
    if cost.basis == "measured" and cost.model == model.name:
        return CostOrigin.CALIBRATED
    elsewhere = pool.accelerator != "cpu" and not names_accelerator(cost.hardware, pool.accelerator)
    return CostOrigin.OTHER_PROFILE if elsewhere or cost.model != model.name else CostOrigin.PROFILE


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
