"""What a simulated cell among others runs, and what its replicas cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deployments.engine_model.cost_model import CostModel
from planning.simulator.cell import CellSettings
from planning.simulator.scaling import NO_FAULTS, SimulatedScaling


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One cell: its name in the spec, what it runs, and what a replica costs an hour (US dollars; None: not known)."""

    name: str
    settings: CellSettings
    cost: CostModel
    usd_per_hour: float | None = None


def settings_again(settings: CellSettings) -> CellSettings:
    """The settings of a cell that starts again: without the replicas of its first start, and what befell them."""
    groups = tuple(replace(one, replicas=0, scaling=_again(one.scaling)) for one in settings.groups)
    return replace(settings, replicas=0, fleet=(), groups=groups, scaling=_again(settings.scaling))


def _again(scaling: SimulatedScaling | None) -> SimulatedScaling | None:
    return None if scaling is None else replace(scaling, faults=NO_FAULTS)


def round_trips(names: Sequence[str], rtt_s: float | Mapping[frozenset[str], float]) -> Mapping[frozenset[str], float]:
    """By pair of cells (seconds). Raises ValueError where one is missing."""
    found: dict[frozenset[str], float] = {}
    for one in names:
        for other in names:
            link = frozenset((one, other))
            if one == other:
                continue
            if isinstance(rtt_s, Mapping):
                if link not in rtt_s:
                    raise ValueError(f"rtt_s: {one} and {other} are missing; needed: each pair of cells")
                found[link] = rtt_s[link]
            else:
                found[link] = rtt_s
    return found
