"""What a simulated cell among others runs, and what its replicas cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deployments.engine_model.cost_model import CostModel
from planning.simulator.cell import CellSettings
from planning.simulator.scaling import NO_FAULTS, SimulatedScaling

_HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True)
class ReplicaPrice:
    """What a replica of one cell costs an hour: `usd_per_hour` by the hour from second 0 on, again and again.
    `mtok_per_hour`: million tokens of work that a full replica does in an hour, which make it a price of tokens.

    Raises ValueError where no price is given, or a negative one.
    """

    usd_per_hour: tuple[float, ...]
    mtok_per_hour: float = 1.0

    def __post_init__(self) -> None:
        if not self.usd_per_hour or min(self.usd_per_hour) < 0 or not self.mtok_per_hour > 0:
            raise ValueError(f"{self}: allowed: at least one price, of 0 or more, and mtok_per_hour above 0")

    def at(self, now: float) -> float:
        """USD per replica-hour at that second."""
        return self.usd_per_hour[int(now // _HOUR_S) % len(self.usd_per_hour)]

    def usd_per_mtok(self, now: float) -> float:
        """USD per million tokens of work at that second."""
        return self.at(now) / self.mtok_per_hour

    def usd(self, from_s: float, until_s: float) -> float:
        """What one replica costs from one second to another."""
        paid, at_s = 0.0, from_s
        while at_s < until_s:
            next_s = min(until_s, _HOUR_S * (at_s // _HOUR_S + 1))
            paid += self.at(at_s) * (next_s - at_s) / _HOUR_S
            at_s = next_s
        return paid


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One cell: its name in the spec, what it runs, and what its replicas cost (None: not known)."""

    name: str
    settings: CellSettings
    cost: CostModel
    price: ReplicaPrice | None = None


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
