"""A plan: replicas by region, group, price kind and hour, what they cost, and what a token comes to."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planning.capacity.clash import Relaxation
from planning.capacity.placement import CapacityPlan, Outcome
from planning.capacity.problem import PriceKind
from planning.plans.offers import GroupOffer
from planning.plans.prices import Priced
from planning.plans.question import Case, PlacementQuestion, Rates, rate_for, transfer_usd
from planning.plans.rates import GroupRate, input_share
from planning.plans.traffic import Band
from planning.workload.arrivals import HOUR_S

MONTH_HOURS = 730.0
MILLION = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class PlannedGroup:
    """A group in a region. `replicas`: by price kind, an hour each. `served`: requests/s by (band, origin), an hour
    each. `rates`: of one replica, by (band, origin)."""

    offer: GroupOffer
    region: str
    prices: Mapping[PriceKind, Priced]
    replicas: Mapping[PriceKind, tuple[int, ...]]
    served: Mapping[tuple[str, str], tuple[float, ...]]
    rates: Mapping[tuple[str, str], GroupRate]

    @property
    def hours(self) -> range:
        return range(len(next(iter(self.replicas.values()))))

    def count(self, hour: int) -> int:
        """Replicas of all kinds."""
        return sum(counts[hour] for counts in self.replicas.values())

    def load(self, hour: int) -> float:
        """Replicas' worth of requests at their highest rates."""
        return sum(rates[hour] / self.rates[key].per_replica for key, rates in self.served.items())

    def warm(self, hour: int, utilisation: float) -> int:
        """Replicas beyond those that the load takes: ready for failures and lost regions, or reserved and idle."""
        return self.count(hour) - min(self.count(hour), math.ceil(self.load(hour) / utilisation - 1e-6))

    def usd(self, hour: int) -> float:
        """US dollars for the hour."""
        return sum(counts[hour] * self.prices[kind].usd_per_replica_hour for kind, counts in self.replicas.items())

    def pressure(self, hour: int) -> tuple[float, int]:
        """How much a replica has to do; of equals, an hour with more replicas counts for more."""
        return self.load(hour) / max(1, self.count(hour)), self.count(hour)

    @property
    def gpu_hours(self) -> float:
        """Of the whole period."""
        return float(self.offer.gpus * sum(self.count(hour) for hour in self.hours))

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and the most replicas of any hour."""
        counts = [self.count(hour) for hour in self.hours]
        return min(counts), max(counts)

    @property
    def name(self) -> str:
        return f"{self.offer.model}, {self.offer} in {self.region}"


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """What a model's tokens cost by the plan: US dollars a day, tokens a day in millions, and US dollars a million
    tokens; what stands idle is in them in proportion."""

    model: str
    usd_per_day: float
    input_mtok_per_day: float
    output_mtok_per_day: float
    usd_per_input_mtok: float
    usd_per_output_mtok: float


@dataclass(frozen=True, slots=True, eq=False)
class WorksheetPlan:
    """The answer to a worksheet. `utilisation`: of a replica's highest rate, the share that is planned for. `clashes`:
    requirements that cannot hold together; then there are no groups. `savings`: what each limit costs. `notes`: what
    was assumed or corrected."""

    case: Case
    question: PlacementQuestion
    placement: CapacityPlan
    rates: Rates
    utilisation: float
    groups: tuple[PlannedGroup, ...]
    clashes: tuple[str, ...] = ()
    savings: tuple[Relaxation, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def feasible(self) -> bool:
        return self.placement.outcome in (Outcome.PROVED, Outcome.TIME_LIMIT)

    @property
    def hours(self) -> range:
        return range(self.case.hours)

    def usd(self, hour: int) -> float:
        """US dollars of an hour."""
        return sum(self.usd_of(group, (hour,)) for group in self.groups)

    def usd_of(self, group: PlannedGroup, hours: Sequence[int]) -> float:
        """US dollars of a group in some hours: replicas, and what crosses between regions, band by band."""
        bands = {band.name: band for band in self.case.bands}
        crossing = sum(
            sum(rates[hour] for hour in hours)
            * HOUR_S
            * transfer_usd(self.case, [bands[band]]).get((origin, group.region), 0.0)
            for (band, origin), rates in group.served.items()
            if origin != group.region
        )
        return sum(group.usd(hour) for hour in hours) + crossing

    @property
    def usd_per_hour(self) -> float:
        """The mean over the period."""
        return sum(self.usd(hour) for hour in self.hours) / len(self.hours)

    @property
    def gpu_hours_per_day(self) -> float:
        return sum(group.gpu_hours for group in self.groups) * 24 / len(self.hours)

    @property
    def mean_utilisation(self) -> float:
        """Replicas' worth of load by replicas, over the period."""
        load = sum(group.load(hour) for group in self.groups for hour in self.hours)
        return load / max(1, sum(group.count(hour) for group in self.groups for hour in self.hours))

    @property
    def spot_share(self) -> float:
        """Of replica-hours."""
        spot = sum(sum(group.replicas.get(PriceKind.SPOT, ())) for group in self.groups)
        return spot / max(1, sum(group.count(hour) for group in self.groups for hour in self.hours))

    @property
    def warm_replica_hours_per_day(self) -> float:
        """Replica-hours that the load does not take."""
        warm = sum(group.warm(hour, self.utilisation) for group in self.groups for hour in self.hours)
        return warm * 24 / len(self.hours)

    def count(self, hour: int) -> int:
        return sum(group.count(hour) for group in self.groups)

    def of_model(self, model: str) -> tuple[PlannedGroup, ...]:
        return tuple(group for group in self.groups if group.offer.model == model)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stream.model for stream in self.case.streams))


def planned_groups(
    case: Case, question: PlacementQuestion, placement: CapacityPlan, rates: Rates
) -> tuple[PlannedGroup, ...]:
    """The groups and regions that have replicas in some hour."""
    hours, lanes = range(case.hours), question.problem.lanes
    found = []
    for number, (site, offer) in enumerate(zip(question.problem.sites, question.offers, strict=True)):
        replicas = {
            kind: counts
            for kind in site.prices
            if any(counts := tuple(placement.replicas.get((number, kind, hour), 0) for hour in hours))
        }
        if not replicas:
            continue
        served: dict[tuple[str, str], list[float]] = {}
        for (route, hour), share in placement.shares.items():
            if route.site == number:
                lane = lanes[route.lane]
                rate = share * lane.demand[route.origin][hour]
                served.setdefault((lane.name, route.origin), [0.0] * case.hours)[hour] += rate
        own = {(band, origin): rate_for(rates, offer, band, origin != site.region) for band, origin in served}
        figures = {key: tuple(values) for key, values in served.items()}
        found.append(PlannedGroup(offer, site.region, question.prices[number], replicas, figures, own))
    return tuple(found)


def token_prices(plan: WorksheetPlan) -> tuple[TokenPrice, ...]:
    """By model. What a group costs is shared by the work of its bands, and each band's part by the work of its prompts
    and answers (`input_share`)."""
    return tuple(_token_price(plan, model) for model in plan.models)


def _token_price(plan: WorksheetPlan, model: str) -> TokenPrice:
    bands = {band.name: band for band in plan.case.bands}
    days = len(plan.hours) / 24
    inputs_usd = whole_usd = 0.0
    for group in plan.of_model(model):
        work_in = work = 0.0
        for key, rates in group.served.items():
            seconds = sum(rates) / group.rates[key].per_replica
            work += seconds
            work_in += seconds * input_share(group.offer, bands[key[0]])
        usd = plan.usd_of(group, plan.hours)
        whole_usd += usd
        inputs_usd += usd * (work_in / work if work else 0.5)
    input_mtok, output_mtok = volume_mtok(band for band in plan.case.bands if band.stream.model == model)
    return TokenPrice(
        model,
        whole_usd / days,
        input_mtok / days,
        output_mtok / days,
        inputs_usd / input_mtok if input_mtok else math.nan,
        (whole_usd - inputs_usd) / output_mtok if output_mtok else math.nan,
    )


def volume_mtok(bands: Iterable[Band]) -> tuple[float, float]:
    """Millions of prompt and answer tokens in the worksheet's period."""
    inputs = outputs = 0.0
    for band in bands:
        requests = HOUR_S * sum(map(sum, band.demand().values()))
        inputs += requests * band.input_tokens / MILLION
        outputs += requests * band.output_tokens / MILLION
    return inputs, outputs
