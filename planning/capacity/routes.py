"""Which sites serve which requests. Origins that all sites serve alike count as one, as do sites that serve all alike.

Without that, a program has many answers that differ in nothing but where equal requests go, and a search looks at all
of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planning.capacity.problem import Problem

_ROUND = 1e-9


@dataclass(frozen=True, slots=True)
class Route:
    """A lane's requests of one origin served at one site: indices into the problem's lanes and sites."""

    lane: int
    origin: str
    site: int


@dataclass(frozen=True, slots=True)
class AlikeRoutes:
    """A lane's requests of some origins served at some sites: between the origins, and between the sites, there is no
    difference. `rate`: requests/s of one replica. `usd_per_request`: what a request pays for crossing regions."""

    lane: int
    origins: tuple[str, ...]
    sites: tuple[int, ...]
    rate: float
    usd_per_request: float

    @property
    def requests(self) -> tuple[int, tuple[str, ...]]:
        """The lane and the origins: what the shares of all that have them add up for."""
        return self.lane, self.origins

    def demand(self, problem: Problem, hour: int) -> float:
        """Requests/s of all its origins."""
        rates = problem.lanes[self.lane].demand
        return sum(rates[origin][hour] for origin in self.origins)


Offer = tuple[int, float, float]
"""A site that serves some requests, requests/s of one of its replicas, US dollars a request for crossing regions."""


def alike_routes(problem: Problem, lanes: Iterable[int], lost: str | None = None) -> list[AlikeRoutes]:
    """The routes of some lanes, those without a difference together. `lost`: a region that serves nothing; what
    crosses regions is not paid for then.

    Spare replicas are counted by site: sites are not merged then.
    """
    kinds = list(_kinds(problem, lanes, lost).items())
    served: dict[int, list[tuple[int, float, float]]] = {}
    for number, ((_, offers), _) in enumerate(kinds):
        for site, rate, usd in offers:
            served.setdefault(site, []).append((number, rate, usd))
    spares = problem.limits.failures > 0 and lost is None
    alike: dict[tuple[object, ...], list[int]] = {}
    for site, own in served.items():
        alike.setdefault((tuple(own), site if spares else None), []).append(site)
    return [
        AlikeRoutes(kinds[number][0][0], tuple(kinds[number][1]), tuple(sites), rate, usd)
        for sites in alike.values()
        for number, rate, usd in served[sites[0]]
    ]


def _kinds(problem: Problem, lanes: Iterable[int], lost: str | None) -> dict[tuple[int, tuple[Offer, ...]], list[str]]:
    """By lane and the sites that serve it, the origins of requests that these serve alike."""
    found: dict[tuple[int, tuple[Offer, ...]], list[str]] = {}
    for number in lanes:
        lane = problem.lanes[number]
        usd = {} if lost else problem.usd_per_request
        for origin in lane.demand:
            offers = tuple(
                (place, site.rate(lane.name, origin), usd.get((origin, site.region), 0.0))
                for place, site in enumerate(problem.sites)
                if site.region != lost and problem.serves(lane, origin, site)
            )
            found.setdefault((number, offers), []).append(origin)
    return found


def divided(
    problem: Problem, routes: AlikeRoutes, hour: int, share: float, replicas: Mapping[int, float]
) -> list[tuple[Route, float]]:
    """Where a share of the demand of alike routes goes: shares of each origin's own demand, by route. Each
    site gets what its replicas are of all, from its own region as far as possible."""
    rates = problem.lanes[routes.lane].demand
    from_origins = {origin: share * rates[origin][hour] for origin in routes.origins if rates[origin][hour] > 0}
    whole, total = sum(replicas[site] for site in routes.sites), sum(from_origins.values())
    sites = [site for site in routes.sites if replicas[site] > 0] if whole > 0 else list(routes.sites[:1])
    room = {site: total * (replicas[site] / whole if whole > 0 else 1.0) for site in sites}
    found: dict[Route, float] = {}
    pairs = [(origin, site) for origin in from_origins for site in sites]
    pairs.sort(key=lambda pair: pair[0] != problem.sites[pair[1]].region)
    for origin, site in pairs:
        moved = min(from_origins[origin], room[site])
        if moved > _ROUND * total:
            found[Route(routes.lane, origin, site)] = moved / rates[origin][hour]
            from_origins[origin] -= moved
            room[site] -= moved
    return list(found.items())
