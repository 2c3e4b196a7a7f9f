"""The knobs of the backlog policy, with units. `docs/autoscaling.md` tells what each does to attainment and to
GPU-hours.

The ranges are those of the spec's section `Backlog`, whose fields these are.
"""

from dataclasses import dataclass, fields
from statistics import NormalDist

from pydantic import ValidationError

from autoscaling.policies.settings import require_positive
from cluster.spec import Backlog

USUAL_START_S = 60.0
"""The longest start-up time for which `short_cost` is what it says."""


@dataclass(frozen=True, slots=True)
class BacklogSettings:
    """`target_wait`: the share of a class's TTFT SLO that its requests may spend in the lane. `long_wait_s`: what the
    lane without a bound may wait at least, whatever its classes promise, since its prompts alone take that long.

    `utilisation`: the share of a replica's capacity that demand may fill. `short_cost`: what a replica too few costs,
    in replicas too many, where a start takes a minute or less (in proportion where it takes longer): how much of the
    demand's noise is covered. `recover_s`: in how many seconds a backlog over its target shall be gone, once the
    replicas are there. `occupancy`: the share of sequences or KV blocks that may be booked. `level_s`: over how many
    seconds demand is averaged at most. `trend`: whether demand is extrapolated by the time that a start takes.

    `down_after_s`: for so long fewer must have sufficed before any is taken away, and never for less than `down_starts`
    times what a start takes. `margin`: by how much of a replica they must have sufficed, and by how much more must be
    needed. `reversal_spans`: within so many times as long a step that is reversed is a flap, and a small step rests
    (`cooldown.py`). `zero_after_s`: idle for so long, the last replica goes, where zero is allowed. `burn`: SLOs missed
    so many times as fast as the SLO allows add a replica whatever the rest says.
    """

    target_wait: float = 0.5
    long_wait_s: float = 5.0
    utilisation: float = 0.98
    short_cost: float = 10.0
    recover_s: float = 60.0
    occupancy: float = 0.95
    level_s: float = 600.0
    trend: bool = True
    down_after_s: float = 300.0
    down_starts: float = 1.0
    margin: float = 0.25
    reversal_spans: float = 2.0
    zero_after_s: float = 300.0
    burn: float = 10.0
    period_s: float = 1.0

    def __post_init__(self) -> None:
        try:
            Backlog(**{one.name: getattr(self, one.name) for one in fields(self) if one.name != "period_s"})
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{first['loc'][0]}={first['input']!r}: {first['msg']}") from None
        require_positive(self, "period_s")

    def sigmas(self, start_s: float) -> float:
        """How many standard deviations of the demand's noise are covered where a start takes so long: the newsvendor's
        quantile, cost of short / (cost of short + 1). Who is short stays so for a start: where that is longer than
        usual, the cost is more in proportion."""
        cost = self.short_cost * max(1.0, start_s / USUAL_START_S)
        return NormalDist().inv_cdf(cost / (cost + 1.0))


def settings_of(section: Backlog, period_s: float = 1.0) -> BacklogSettings:
    """The settings in a spec's section."""
    return BacklogSettings(**section.model_dump(), period_s=period_s)
