"""A day of metrics from the simulator, given to Prometheus' own tool: a quiet day pages never, and what goes wrong at
noon raises what its runbook says, when the windows' arithmetic says, and no other page."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from deployments.engine_model.cost_model import CostModel, line, plain_attention, slowed
from deployments.engine_model.limits import EngineModelLimits
from deployments.protocol import Finished, Usage
from deployments.scheduling import LanePolicy, SchedulingPolicy
from deployments.telemetry.ledger import Ledger, RequestOutcome
from deployments.telemetry.slo import itl_met, ttft_met
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.workload import Workload, plain_workload
from tests.infra.promtool import fires, needs_promtool

pytestmark = [needs_promtool, pytest.mark.long]

COST = CostModel(line(0.03, 5e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
LIMITS = EngineModelLimits(sequences=2, step_tokens=2_048, kv_tokens=40_000, chunk_tokens=256, prefix_caching=True)
REPLICAS, MINUTES, NOON, PER_S = 3, 1_440, 720, 0.25
"""Six requests run at once, each for about three seconds; one comes every four seconds."""
TTFT_S, ITL_S, BUDGET = 1.0, 0.05, 0.01
WINDOWS = ((5, 60, 14.4), (30, 360, 6.0))
LABELS = 'cell="c", model="m"'
Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Day:
    """By minute and since midnight: requests that met and missed each SLO, prompt tokens and those in the cache."""

    met: dict[str, Counts]
    missed: dict[str, Counts]
    prompts: Counts
    cached: Counts

    def series(self) -> dict[str, str]:
        found = {f'raylane_model_info{{{LABELS}, owner="search"}}': f"1x{MINUTES}"}
        for slo in ("ttft", "itl"):
            labels = f'{LABELS}, class="chat", slo="{slo}"'
            found[f"raylane_slo_target_ratio{{{labels}}}"] = f"{1 - BUDGET}x{MINUTES}"
            for result, counts in (("met", self.met[slo]), ("missed", self.missed[slo])):
                found[f'raylane_slo_requests_total{{{labels}, result="{result}"}}'] = values(counts)
        for kind, counts in (("in", self.prompts), ("cached", self.cached)):
            found[f'raylane_lane_tokens_total{{{LABELS}, lane="short", kind="{kind}"}}'] = values(counts)
        return found

    def burns(self, slo: str) -> tuple[int, int]:
        """The minutes between which a burn lasts, by the windows' arithmetic."""
        missed, both = self.missed[slo], self.missed[slo] + self.met[slo]

        def burnt(minutes: int, times: float) -> NDArray[np.bool_]:
            before = np.maximum(np.arange(MINUTES) - minutes, 0)
            misses, requests = missed - missed[before], both - both[before]
            return (requests >= 20) & (misses > times * BUDGET * requests)

        found = np.flatnonzero(
            np.logical_or.reduce([burnt(short, times) & burnt(long, times) for short, long, times in WINDOWS])
        )
        return int(found[0]), int(found[-1])


def values(counts: Counts) -> str:
    return " ".join(f"{count:g}" for count in counts)


def traffic(extra: float = 0.0, new_prefixes: bool = False) -> Workload:
    """A day; from noon on for an hour and a half `extra` requests a second more, or prompts that begin as none did."""
    rng = np.random.default_rng(1)
    arrived = np.cumsum(rng.exponential(1 / PER_S, round(PER_S * 86_400 * 0.98)))
    burst = NOON * 60 + np.sort(rng.uniform(0, 5_400, round(extra * 5_400)))
    arrived = np.sort(np.concatenate([arrived, burst]))
    work = plain_workload(arrived, np.full(len(arrived), 600), rng.integers(40, 160, len(arrived)), TTFT_S)
    cold = new_prefixes & (arrived > NOON * 60) & (arrived < NOON * 60 + 5_400)
    prefix = tuple((10 + 2 * at, 11 + 2 * at) if cold[at] else (1, 2) for at in range(len(arrived)))
    return replace(work, prefix=prefix, chunk_tokens=256)


def simulated(work: Workload, cost: CostModel = COST, stalls_s: tuple[float, ...] = ()) -> SimulationOutcome:
    """`stalls_s`: when the second replica fails."""
    policy = SchedulingPolicy((LanePolicy("short", None, 1, 60, 600),))
    cell = CellSimulator(CellSettings(REPLICAS, LIMITS, policy, queue_wait_s=60), cost, work)
    for at_s in stalls_s:
        cell.at(at_s, lambda now: cell.fleet.fail(cell.replicas[1], now))
    return cell.run()


def day_of(out: SimulationOutcome, slow: SimulationOutcome | None = None) -> Day:
    """`slow`: what became of the requests that came in the hour and a half after noon instead."""
    ended: dict[str, list[float]] = {f"{slo} {met}": [] for slo in ("ttft", "itl") for met in (True, False)}
    for at, arrived_s in enumerate(out.arrived_s):
        of = slow if slow is not None and NOON * 60 <= arrived_s < NOON * 60 + 5_400 else out
        one = ledger_of(of, at)
        for slo, met in (("ttft", ttft_met(one, TTFT_S)), ("itl", itl_met(one, ITL_S))):
            if met is not None:
                ended[f"{slo} {met}"].append(one.ended_s or 0.0)

    def by_minute(times: NDArray[np.float64], weights: NDArray[np.int64] | None = None) -> Counts:
        return np.cumsum(np.histogram(times, MINUTES, (0, 86_400), weights=weights)[0]).astype(float)

    counts = {name: by_minute(np.asarray(times)) for name, times in ended.items()}
    done = ~np.isnan(out.finished_s)
    return Day(
        {slo: counts[f"{slo} True"] for slo in ("ttft", "itl")},
        {slo: counts[f"{slo} False"] for slo in ("ttft", "itl")},
        by_minute(out.finished_s[done], out.prompt_tokens[done]),
        by_minute(out.finished_s[done], out.cached_tokens[done]),
    )


def ledger_of(out: SimulationOutcome, at: int) -> Ledger:
    """The account that a gateway would have of the request."""
    arrived_s, first_s, finished_s = (float(column[at]) for column in (out.arrived_s, out.first_s, out.finished_s))
    one = Ledger("", "", "/v1/chat/completions", arrived_s, 0.0, model="m", traffic_class="chat", stream=True)
    one.submitted(arrived_s)
    if np.isnan(finished_s):
        lost_s = next((float(s) for s in (out.expired_s[at], out.placed_s[at]) if not np.isnan(s)), arrived_s)
        one.status, one.outcome, one.ended_s = 503, RequestOutcome.FAILED, lost_s
        return one
    one.left_lane(float(out.placed_s[at]), placed=True)
    one.status, one.outcome = 200, RequestOutcome.OK
    one.first_byte_s, one.last_byte_s, one.ended_s = first_s, finished_s, finished_s
    one.engine_wait_s = finished_s - first_s
    output = int(out.output_tokens[at])
    one.finished = Finished("", 200, Usage(int(out.prompt_tokens[at]), 0, output, 0, 1, 0.0, 0.0, 0.0), 0.0, 0.0)
    return one


def test_a_quiet_day_raises_nothing(tmp_path: Path) -> None:
    day = day_of(simulated(traffic()))
    assert day.met["ttft"][-1] > 10_000
    fires(tmp_path, day.series(), {minute: [] for minute in range(10, MINUTES, 10)})


@pytest.mark.parametrize("slo", ["ttft", "itl"])
def test_a_burn_pages_when_its_windows_say(tmp_path: Path, slo: str) -> None:
    """Either nine times the traffic, or engines that take twice as long for a step."""
    if slo == "ttft":
        day = day_of(simulated(traffic(extra=2.0)))
    else:
        work = traffic()
        day = day_of(simulated(work), simulated(work, slowed(COST, 2.0)))
    begins, ends = day.burns(slo)
    assert NOON < begins < NOON + 20
    assert ends > NOON + 80
    page = [{"alertname": f"Raylane{slo.title()}Burns"}]
    quiet = [*range(20, NOON, 60), NOON, begins - 2, ends + 3, *range(ends + 30, MINUTES, 60)]
    burning = [begins + 3, *range(begins + 10, ends - 10, 10), ends - 2]
    fires(tmp_path, day.series(), {**{minute: [] for minute in quiet}, **dict.fromkeys(burning, page)})


def test_a_cold_cache_makes_a_ticket(tmp_path: Path) -> None:
    day = day_of(simulated(traffic(new_prefixes=True)))
    ticket = [{"alertname": "RaylanePrefixHitsFall"}]
    times = {NOON - 5: [], NOON + 5: [], NOON + 45: ticket, NOON + 80: ticket, NOON + 150: [], MINUTES - 10: []}
    fires(tmp_path, day.series(), times)


def test_replicas_that_cannot_start_make_a_ticket(tmp_path: Path) -> None:
    """Those that run are enough. Starts fail from noon on, every ten minutes for an hour."""
    failed = f"_x{NOON} " + " ".join(f"{count}x9" for count in range(1, 7)) + f" 6x{MINUTES}"
    series = {**day_of(simulated(traffic())).series(), f'raylane_failed_starts_total{{{LABELS}, phase="load"}}': failed}
    ticket = [{"alertname": "RaylaneStartsFail"}]
    times = {NOON - 5: [], NOON + 2: ticket, NOON + 30: ticket, NOON + 60: ticket, NOON + 80: [], MINUTES - 10: []}
    fires(tmp_path, series, times)


def test_a_stalled_replica_makes_a_ticket(tmp_path: Path) -> None:
    """What it ran is lost; its place is taken a minute later."""
    day = day_of(simulated(traffic(), stalls_s=(NOON * 60.0,)))
    lost = f'raylane_departures_total{{{LABELS}, kind="replica", cause="engine_stalled", planned="no"}}'
    series = {**day.series(), lost: f"_x{NOON} 1x{MINUTES - NOON}"}
    ticket = [{"alertname": "RaylaneDepartures"}]
    fires(tmp_path, series, {NOON - 5: [], NOON + 5: ticket, NOON + 30: [], MINUTES - 10: []})
