"""The placement problem of a worksheet: bands as lanes, groups in regions as sites, with rates, prices and limits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.spec import ClusterSpec
from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Site
from planning.plans.offers import GroupOffer, RejectedOffer
from planning.plans.prices import Priced, prices_of
from planning.plans.rates import GroupRate, RateJob
from planning.plans.traffic import Band, RequestStream, bands_of
from planning.worksheet.sheet import Worksheet

GB = 1e9
FARTHEST = 0.5
"""Of a TTFT, what a round trip between regions may take: beyond that a region does not serve another one's requests."""

Rates = Mapping[tuple[str, str, str, bool], GroupRate]
"""By model, group and band, and whether requests come from another region."""


def rate_for(rates: Rates, offer: GroupOffer, band: str, far: bool) -> GroupRate:
    """The rate of a band on a group. Raises KeyError where the group may not serve it."""
    return rates[offer.model, offer.group, band, far]


@dataclass(frozen=True, slots=True)
class Case:
    """A worksheet, what arrives and what could serve it. `too_long`: by stream, the share of requests that fit no
    group."""

    sheet: Worksheet
    spec: ClusterSpec
    streams: tuple[RequestStream, ...]
    bands: tuple[Band, ...]
    offers: tuple[GroupOffer, ...]
    rejected: tuple[RejectedOffer, ...] = ()
    too_long: Mapping[str, float] = field(default_factory=dict)

    @property
    def hours(self) -> int:
        """24, or 168."""
        return len(next(iter(self.streams[0].rates.values())))

    def serving(self, band: Band) -> list[GroupOffer]:
        """The groups that may serve a band: by its lane and their context."""
        return [
            one
            for one in self.offers
            if one.model == band.stream.model and band.lane in one.lanes and band.longest <= one.context
        ]

    def rtt_s(self, origin: str, region: str) -> float | None:
        """The round trip between regions; None: not known."""
        if origin == region:
            return 0.0
        rtt_ms = self.spec.hardware.link(origin, region).rtt_ms
        return None if rtt_ms is None else rtt_ms / 1e3

    def regions_for(self, band: Band, origin: str) -> list[str]:
        """Where a band's requests from there may be served: residency, and a round trip within `FARTHEST` of the
        TTFT."""
        stream = band.stream
        found = []
        for region in dict.fromkeys(name for one in self.serving(band) for name in one.regions):
            rtt_s = self.rtt_s(origin, region)
            near = rtt_s is not None and rtt_s <= FARTHEST * stream.ttft_s
            if near and (stream.residency is None or region in stream.residency):
                found.append(region)
        return found

    def cut_s(self, band: Band) -> float:
        """What the network may take of a band's TTFT: its longest round trip. The rest is for its replicas."""
        trips = [
            self.rtt_s(origin, one) or 0.0 for origin in band.stream.rates for one in self.regions_for(band, origin)
        ]
        return max(trips, default=0.0)


def case_of(
    sheet: Worksheet,
    spec: ClusterSpec,
    streams: tuple[RequestStream, ...],
    offers: tuple[GroupOffer, ...],
    rejected: tuple[RejectedOffer, ...] = (),
) -> Case:
    """With the streams cut into bands."""
    bands: list[Band] = []
    too_long: dict[str, float] = {}
    for stream in streams:
        contexts = [one.context for one in offers if one.model == stream.model]
        found, left = bands_of(stream, spec, contexts or [0])
        bands += found
        if left:
            too_long[stream.name] = left
    return Case(sheet, spec, streams, tuple(bands), offers, rejected, too_long)


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """The problem, and what its sites stand for: the group and the prices of each. `unpriced`: groups and regions
    without a price."""

    problem: Problem
    offers: tuple[GroupOffer, ...]
    prices: tuple[Mapping[PriceKind, Priced], ...]
    unpriced: tuple[str, ...] = ()


def question_of(
    case: Case, rates: Rates, utilisation: float, scale: Mapping[str, float] | None = None
) -> PlacementQuestion:
    """The problem with replicas that are used to that share at most. `scale`: by model, a factor on its demand."""
    scale = scale or {}
    lanes = tuple(_lane(band, scale.get(band.stream.model, 1.0)) for band in case.bands)
    sites, offers, prices, unpriced = [], [], [], []
    for offer in case.offers:
        for name in offer.regions if serves(case, rates, offer) else ():
            priced = prices_of(offer.gpu, offer.view, case.spec.region(name), case.sheet, case.spec)
            if not priced:
                unpriced.append(f"{offer} in {name}")
                continue
            costs = {kind: one.usd_per_replica_hour for kind, one in priced.items()}
            sites.append(site_of(case, rates, offer, name, costs))
            offers.append(offer)
            prices.append(priced)
    problem = Problem(
        lanes,
        tuple(sites),
        case.hours,
        case.sheet.quotas,
        _limits(case, utilisation),
        {pair: trip for pair in _pairs(case) if (trip := case.rtt_s(*pair)) is not None},
        transfer_usd(case, case.bands),
    )
    return PlacementQuestion(problem, tuple(offers), tuple(prices), tuple(unpriced))


def serves(case: Case, rates: Rates, offer: GroupOffer) -> bool:
    """Whether a group serves any band at all."""
    return any(_held(case, rates, offer, far) for far in (False, True))


def site_of(case: Case, rates: Rates, offer: GroupOffer, region: str, usd: Mapping[PriceKind, float]) -> Site:
    """A group in a region, at those prices a replica-hour."""
    near, far = (_held(case, rates, offer, other) for other in (False, True))
    others = {
        (band.name, origin): far.get(band.name, 0.0) if region in case.regions_for(band, origin) else 0.0
        for band in case.bands
        for origin in band.stream.rates
        if origin != region
    }
    return Site(offer.group, offer.model, region, offer.gpu, offer.gpus, near, usd, others)


def _held(case: Case, rates: Rates, offer: GroupOffer, far: bool) -> dict[str, float]:
    """Requests/s of a replica by band."""
    keys = {band.name: (offer.model, offer.group, band.name, far) for band in case.bands}
    return {name: rates[key].per_replica for name, key in keys.items() if key in rates and rates[key].per_replica > 0}


def _lane(band: Band, scale: float) -> LaneDemand:
    demand = {origin: tuple(scale * rate for rate in rates) for origin, rates in band.demand().items()}
    return LaneDemand(band.name, band.stream.model, demand, band.stream.ttft_s, band.stream.residency)


def _limits(case: Case, utilisation: float) -> Limits:
    survive, spot = case.sheet.survive, case.sheet.prices.spot
    return Limits(
        utilisation,
        1.0 if spot is None else spot.max_share,
        survive.replica_failures,
        survive.any_one_region,
        survive.binding_share,
    )


def _pairs(case: Case) -> Iterable[tuple[str, str]]:
    origins = dict.fromkeys(origin for stream in case.streams for origin in stream.rates)
    regions = dict.fromkeys(name for offer in case.offers for name in offer.regions)
    return [(origin, region) for origin in origins for region in regions]


def transfer_usd(case: Case, bands: Iterable[Band]) -> dict[tuple[str, str], float]:
    """US dollars a request that crosses, by origin and region: prompts leave the origin, answers the region that
    serves. Of the mean request of the bands, by their rates."""
    weighted = [(sum(map(sum, band.demand().values())), band) for band in bands]
    whole = sum(weight for weight, _ in weighted) or 1.0
    sizes = case.sheet.transfer
    prompt = sum(weight * band.input_tokens for weight, band in weighted) / whole * sizes.prompt_bytes_per_token / GB
    answer = sum(weight * band.output_tokens for weight, band in weighted) / whole * sizes.answer_bytes_per_token / GB
    link = case.spec.hardware.link
    return {
        (origin, region): prompt * (link(origin, region).usd_per_gb or 0.0)
        + answer * (link(region, origin).usd_per_gb or 0.0)
        for origin, region in _pairs(case)
        if origin != region
    }


def rate_jobs(case: Case, replicas: Mapping[tuple[str, str], int]) -> dict[tuple[str, str, str, bool], RateJob]:
    """The rates to be found: of all bands on all groups that may serve them. `replicas`: by model and group, how many
    share the requests; 1 where it says nothing."""
    jobs = {}
    for band in case.bands:
        network_s = case.cut_s(band)
        for offer in case.serving(band):
            count = replicas.get((offer.model, offer.group), 1)
            for far in (False, True) if network_s else (False,):
                key = offer.model, offer.group, band.name, far
                jobs[key] = RateJob(offer, band, count, network_s if far else 0.0)
    return jobs
