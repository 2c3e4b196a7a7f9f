"""What three regions cost by day, with and without help from each other: `python -m benchmarks.regional_days --traces
FOLDER`.

Each region has other clients of ServeGen's chat service, drawn by their own rates and bursts, at the hours of its own
time zone: no region's curve is another's shifted. Rates are scaled to 0.54 requests a second in each region, over the
whole days of its clients; lengths, SLOs and engines are those of the gauntlet's days
(`planning/gauntlet/scenarios/servegen.py`). A replica takes 90 s to start.

    reserved     a fixed number of replicas in each region: the smallest that attains what `own` (and what
                 `hand-over`) attains there, searched
    own          each region by our own policy alone
    hand-over    the same, and cells hand over; policies count what peers have to spare
    re-planned   (`--replan`) the same, within the floors and ceilings of a re-plan every five minutes
                 (`planning/replan`), at the rate that four replicas together hold

Figures: replica-hours times price, and attainment by region. Time is virtual.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from autoscaling.policies.policy import ReplicaProfile, ScalingPolicy
from autoscaling.policies.registry import PolicyChoice
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds
from benchmarks.harness import JsonFile, Traces, console, plain_table, run_facts, write_json
from benchmarks.peering import NEVER, REGIONS, RTT_S, three_regions
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec
from planning.capacity.problem import LaneDemand, PriceKind, Problem, Site
from planning.gauntlet.recorded import CLASSES, fitted, workload_of
from planning.gauntlet.scenarios.servegen import DAY_S, REASONER, SMALL
from planning.gauntlet.serving import REASONING, full_rate
from planning.replan import ReplanBasis, SiteKey
from planning.replan.demand import PlannedBand, PlannedDemand
from planning.replan.simulated import ReplannedAutoscaler, SimulatedReplanner
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.cell_plan import CellPlan, ReplicaPrice
from planning.simulator.cells import CellsSimulator
from planning.simulator.cells_outcome import CellsOutcome
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import Workload
from planning.workload.servegen import WINDOW_S, ServeGenClient, drawn_trace, read_tables
from planning.workload.trace import Labels, Trace, joined

PER_S = 0.54
SLO_S = (5.0, 15.0)
"""Of prompts of at most 5,000 tokens, and of longer ones."""
DOCUMENT_TOKENS = 5_000
START_UP_S = 90.0
BOUNDS = Bounds(1, 16)
FIRST = 4
TARGET = 0.99
HOURS = {"eu": 1, "us": -6, "ap": 8}
"""The time zones, in hours from UTC. The clients' own clock is taken to be local time."""
USD_PER_HOUR = {"eu": 2.5, "us": 2.5, "ap": 2.5}
_MAX = 400_000
MODEL = "reasoning"


def regions_of(clients: Mapping[str, ServeGenClient], rng: np.random.Generator) -> list[dict[str, ServeGenClient]]:
    """Each client in one region, dealt out by volume: each next three to three regions in random order."""
    volumes = {name: sum(window.rate for window in client.windows) for name, client in clients.items()}
    ordered = sorted(clients, key=lambda name: -volumes[name])
    dealt: list[dict[str, ServeGenClient]] = [{} for _ in REGIONS]
    for first in range(0, len(ordered), len(REGIONS)):
        for name, number in zip(ordered[first : first + len(REGIONS)], rng.permutation(len(REGIONS)), strict=False):
            dealt[number][name] = clients[name]
    return dealt


@dataclass(frozen=True, slots=True, eq=False)
class RegionalDay:
    """One day: requests of all regions in the order of time, and where each arrives."""

    work: Workload
    homes: NDArray[np.int64]

    def of(self, region: int) -> Workload:
        """One region's requests."""
        own = np.flatnonzero(self.homes == region)
        return self.work.take(own, self.work.arrived_s[own])


def day_of(folder: Path, day: int, per_s: float, until_s: float, seed: int = 0) -> RegionalDay:
    """The day of that number (from 1) of the two weeks, drawn the same each time for a seed: which clients a region
    has, when each of them asks, and how long each request is."""
    rng = np.random.default_rng([zlib.crc32(b"regional_days"), day, *([seed] if seed else [])])
    lengths = drawn_trace(read_tables(folder, REASONER), 0.0, DAY_S, 0.01, np.random.default_rng(11), _MAX)
    parts: list[Trace] = []
    for name, clients in zip(REGIONS, regions_of(read_tables(folder, SMALL), rng), strict=True):
        from_s = day * DAY_S + HOURS[name] * 3_600.0
        windows = [window for client in clients.values() for window in client.windows]
        mean = sum(window.rate for window in windows) / (max(window.at_s for window in windows) / WINDOW_S + 1)
        part = drawn_trace(clients, from_s, from_s + until_s, per_s / mean, rng, _MAX)
        here = Labels((name,), np.zeros(len(part), dtype=np.int32))
        parts.append(replace(part, tenant=None, region=here))
    whole = joined(parts)
    assert whole.region is not None
    homes = np.array([REGIONS.index(name) for name in whole.region.names])[whole.region.codes]
    like = rng.integers(0, len(lengths), len(whole))
    whole = replace(whole, prompt_tokens=lengths.prompt_tokens[like], output_tokens=lengths.output_tokens[like])
    return RegionalDay(workload_of(fitted(whole, 1.0, 8_000, 4_000), DOCUMENT_TOKENS, SLO_S), homes)


def spec_of(hand_over: Mapping[str, float]) -> ClusterSpec:
    """Three regions with the classes of these days; the model's engine and replicas come from `plans_of`."""
    classes = [{"name": name, "ttft_ms": 1e3 * slo_s} for name, slo_s in zip(CLASSES, SLO_S, strict=True)]
    return three_regions(load_spec(shipped("specs/simulated-h100.yaml")), hand_over, classes)


def settings_of(
    until_s: float,
    replicas: int | None = None,
    policy: Mapping[str, Any] | None = None,
    scaler: Callable[[ScalingPolicy], Autoscaler] | None = None,
) -> CellSettings:
    """A cell of these days: by our own policy (in a `scaler` of its own), or with a fixed number of replicas."""
    limits = REASONING.limits.with_prefixes(0)
    if replicas is not None:
        return CellSettings(replicas, limits, REASONING.policy, start_up_s=START_UP_S)
    profile = ReplicaProfile(limits, REASONING.policy.decode_weight, REASONING.cost, START_UP_S)
    own = PolicyChoice("backlog", dict(policy or {})).make(profile)
    autoscaler = Autoscaler(own, BOUNDS, START_UP_S) if scaler is None else scaler(own)
    scaling = SimulatedScaling(autoscaler, until_s, dict.fromkeys(CLASSES, TARGET), start_up_s=(START_UP_S,))
    return CellSettings(FIRST, limits, REASONING.policy, start_up_s=START_UP_S, scaling=scaling)


def autoscaled(day: RegionalDay, helps: bool, until_s: float, policy: Mapping[str, Any] | None = None) -> CellsOutcome:
    """Each region by our own policy; with `helps` the cells hand over."""
    plans = [
        CellPlan(name, settings_of(until_s, policy=policy), REASONING.cost, ReplicaPrice((USD_PER_HOUR[name],)))
        for name in REGIONS
    ]
    return CellsSimulator(spec_of({} if helps else NEVER), plans, day.work, day.homes, RTT_S).run()


def replanned(day: RegionalDay, until_s: float) -> CellsOutcome:
    """Each region by our own policy within a re-plan's bounds; the cells hand over."""
    rate = held_rate(day)
    lane = LaneDemand("all", MODEL, {})
    sites = tuple(
        Site("m", MODEL, name, "gpu", 1, {lane.name: rate}, {PriceKind.ON_DEMAND: USD_PER_HOUR[name]})
        for name in REGIONS
    )
    trips = {(one, other): RTT_S[frozenset((one, other))] for one in REGIONS for other in REGIONS if one != other}
    keys, count = tuple(SiteKey(name, MODEL) for name in REGIONS), len(REGIONS)
    basis = ReplanBasis(
        Problem((lane,), sites, rtt_s=trips), keys, (BOUNDS.minimum,) * count, (BOUNDS.maximum,) * count
    )
    planner = SimulatedReplanner(basis, PlannedDemand((PlannedBand(lane.title, MODEL, "all", "all", {}),)))
    plans = []
    for key in keys:
        scaler = partial(ReplannedAutoscaler, planner, key, bounds=BOUNDS, start_up_s=START_UP_S)
        settings = settings_of(until_s, scaler=lambda policy, scaler=scaler: scaler(policy=policy))  # type: ignore[misc]
        plans.append(CellPlan(key.region, settings, REASONING.cost, ReplicaPrice((USD_PER_HOUR[key.region],))))
    return CellsSimulator(spec_of({}), plans, day.work, day.homes, RTT_S).run()


def held_rate(day: RegionalDay) -> float:
    """Requests a second of one replica among four that share Poisson arrivals of the day's requests and attain the
    target; by bisection, to 2 %."""
    low, high = 0.0, 2 * full_rate(REASONING, day.work)
    while high - low > 0.02 * high:
        middle = (low + high) / 2
        rng = np.random.default_rng(1)
        count = int(4 * middle * 3_600)
        like = np.sort(rng.integers(0, len(day.work), count))
        order = rng.permutation(like)
        work = day.work.take(order, np.sort(rng.random(count)) * 3_600)
        out = CellSimulator(settings_of(3_600.0, 4), REASONING.cost, work).run()
        good = float((np.nan_to_num(out.ttft_s, nan=np.inf) <= work.ttft_slo_s).mean()) >= TARGET
        low, high = (middle, high) if good else (low, middle)
    return low


class ReservedSearch:
    """Fixed numbers of replicas in each region, and what they attain there. Each number is simulated once."""

    def __init__(self, day: RegionalDay, until_s: float) -> None:
        self._works = {name: day.of(number) for number, name in enumerate(REGIONS)}
        self._until_s = until_s
        self._attained: dict[tuple[str, int], float] = {}

    def attained(self, name: str, replicas: int) -> float:
        """The share of a region's clients that so many replicas, always there, serve in time."""
        if (name, replicas) not in self._attained:
            work = self._works[name]
            out = CellSimulator(settings_of(self._until_s, replicas), REASONING.cost, work).run()
            in_time = np.nan_to_num(out.ttft_s, nan=np.inf) <= work.ttft_slo_s
            self._attained[name, replicas] = float(in_time.mean())
        return self._attained[name, replicas]

    def fewest(self, attained: Mapping[str, float]) -> dict[str, int]:
        """In each region the fewest replicas that attain as much; by bisection, since more never hurt."""
        found = {}
        for name in REGIONS:
            low, high = 1, 8
            while self.attained(name, high) < attained[name]:
                low, high = high + 1, 2 * high
            while low < high:
                middle = (low + high) // 2
                good = self.attained(name, middle) >= attained[name]
                low, high = (low, middle) if good else (middle + 1, high)
            found[name] = high
        return found


def figures(out: CellsOutcome, day: RegionalDay, until_s: float) -> dict[str, Any]:
    """What a side cost and attained, until the last arrival."""
    hours = {
        name: sum(max(0.0, min(life.ended_s, until_s) - min(life.started_s, until_s)) for life in out.spend(name).lives)
        / 3_600
        for name in REGIONS
    }
    return {
        "usd": sum(USD_PER_HOUR[name] * hours[name] for name in REGIONS),
        "replica_hours": hours,
        "attained": {name: out.attainment(name, day.work.ttft_slo_s) for name in REGIONS},
        "moved": len(out.hops) / len(day.work),
        "changes": {name: len(out.spend(name).scalings) for name in REGIONS},
    }


def one_day(
    folder: Path, day_number: int, seed: int, per_s: float, hours: float, reserve: bool, replan: bool
) -> dict[str, Any]:
    """All sides of one day."""
    until_s = 3_600 * hours
    day = day_of(folder, day_number, per_s, until_s, seed)
    sides = {
        "own": figures(autoscaled(day, False, until_s), day, until_s),
        "hand-over": figures(autoscaled(day, True, until_s), day, until_s),
    }
    if replan:
        sides["re-planned"] = figures(replanned(day, until_s), day, until_s)
    if reserve:
        search = ReservedSearch(day, until_s)
        for title, side in (("reserved as own", "own"), ("reserved as hand-over", "hand-over")):
            sides[title] = _reserved(search, sides[side]["attained"], hours)
    return {"day": day_number, "seed": seed, "requests": len(day.work), "sides": sides}


def _reserved(search: ReservedSearch, attained: Mapping[str, float], hours: float) -> dict[str, Any]:
    counts = search.fewest(attained)
    hours_of = {name: counts[name] * hours for name in REGIONS}
    return {
        "usd": sum(USD_PER_HOUR[name] * hours_of[name] for name in REGIONS),
        "replica_hours": hours_of,
        "attained": {name: search.attained(name, counts[name]) for name in REGIONS},
    }


def main(
    traces: Traces,
    days: Annotated[str, typer.Option(help="Days of the two weeks, from 1 to 12.")] = "4,5,6",
    seeds: Annotated[str, typer.Option(help="Draws of each day.")] = "0",
    per_s: Annotated[float, typer.Option(min=0.01, help="Requests a second in each region, on average.")] = PER_S,
    hours: Annotated[float, typer.Option(min=0.5, max=24, help="Hours of each day.")] = 24.0,
    reserve: Annotated[bool, typer.Option(help="Also find the reserved numbers.")] = True,
    replan: Annotated[bool, typer.Option(help="Also with re-plans.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Compare regions alone with regions that help each other."""
    runs = []
    for number in map(int, days.split(",")):
        for seed in map(int, seeds.split(",")):
            runs.append(one_day(traces, number, seed, per_s, hours, reserve, replan))
            _show(runs[-1])
            write_json({"schema": 1, **run_facts(), "per_s": per_s, "hours": hours, "runs": runs}, json_file)


def _show(run: Mapping[str, Any]) -> None:
    table = plain_table(
        f"day {run['day']}, seed {run['seed']}, {run['requests']:,} requests", "", "USD", "of own", *REGIONS, "moved"
    )
    own = run["sides"]["own"]["usd"]
    for name, side in run["sides"].items():
        regions = (f"{side['replica_hours'][one]:.1f} h, {side['attained'][one]:.3%}" for one in REGIONS)
        moved = f"{side['moved']:.1%}" if "moved" in side else ""
        table.add_row(name, f"{side['usd']:.1f}", f"{side['usd'] / own - 1:+.1%}", *regions, moved)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
