"""`python -m benchmarks.capacity`: how long the placement of groups over regions and hours takes, and the gap that is
left.

Problems are drawn from a seed: real round trips between regions, GPU types with the prices and relative speeds of their
data sheets, demand that follows the day of each region, and three lanes a model, the longest of which does not fit the
small GPUs. Any one region may be lost in the hours that bind, quotas bound each GPU type of a region, and capacity is
on demand, spot (at most a third) or reserved. One thread. The limits are of wall time.
"""

import math
import time
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import JsonFile, console, plain_table, run_facts, write_json
from cluster.hardware.facts import Hardware
from planning.capacity.placement import GAP, CapacityPlan, place
from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Quota, Site

REGIONS = {
    "us-east-1": -5,
    "eu-west-1": 0,
    "ap-northeast-1": 9,
    "us-west-2": -8,
    "eu-central-1": 1,
    "ap-southeast-1": 8,
    "sa-east-1": -3,
    "ap-south-1": 5.5,
    "ca-central-1": -5,
    "ap-southeast-2": 10,
}
"""With their distance from UTC in hours."""
GPUS = {
    "A10G": (1.2, 0.125, 0.6),
    "H100": (6.9, 0.990, 3.35),
    "L4": (0.8, 0.121, 0.3),
    "A100-80GB": (4.1, 0.312, 2.0),
    "L40S": (1.9, 0.362, 0.86),
    "H200": (7.9, 0.990, 4.8),
    "A100-40GB": (2.7, 0.312, 1.55),
    "B200": (14.2, 2.250, 8.0),
    "MI300X": (7.0, 1.307, 5.3),
    "RTX-6000": (3.4, 0.500, 1.6),
}
"""US dollars an hour on demand, dense PFLOP/s in bfloat16, TB/s of memory."""
LANES = {"short": (300, 150, 0.5), "medium": (2_000, 300, 1.0), "long": (16_000, 500, 5.0)}
"""Prompt tokens, output tokens, TTFT in seconds."""
_SHARES = (0.7, 0.25, 0.05)
_REQUEST_GB = 20e-6
"""A request and its answer, some 3,000 tokens."""
_LARGE_TB_S = 1.5
"""GPUs with less memory bandwidth have too little memory for the long lane."""


def drawn_problem(models: int, regions: int, groups: int, hours: int, seed: int, usd_per_gb: float = 0.0) -> Problem:
    """See the module's docstring. Models differ in size and in how many requests they get. `usd_per_gb`: of what
    crosses regions."""
    rng = np.random.default_rng(seed)
    places, facts = list(REGIONS)[:regions], Hardware()
    links = {(one, other): facts.link(one, other).rtt_ms for one in places for other in places if one != other}
    lanes: list[LaneDemand] = []
    sites: list[Site] = []
    for number in range(models):
        model, size = f"model-{number}", float(rng.choice([1.0, 2.0, 4.0]))
        peak = float(rng.uniform(20, 200)) / size
        weight = rng.dirichlet(np.full(regions, 3.0))
        lanes += [
            LaneDemand(name, model, _demand(rng, places, peak * share * weight, hours), ttft_s)
            for (name, (_, _, ttft_s)), share in zip(LANES.items(), _SHARES, strict=True)
        ]
        sites += [_site(rng, model, size, region, gpu) for region in places for gpu in list(GPUS)[:groups]]
    quotas = [Quota(region, gpu, 8 * models) for region in places for gpu in list(GPUS)[:groups]]
    return Problem(
        tuple(lanes),
        tuple(sites),
        hours,
        tuple(quotas),
        Limits(utilisation=0.8, spot_share=1 / 3, survive_region=True),
        {pair: rtt_ms / 1e3 for pair, rtt_ms in links.items() if rtt_ms is not None},
        dict.fromkeys(links, usd_per_gb * _REQUEST_GB) if usd_per_gb else {},
    )


def _demand(
    rng: np.random.Generator, places: list[str], peaks: np.ndarray[tuple[int], np.dtype[np.float64]], hours: int
) -> dict[str, tuple[float, ...]]:
    """By origin and hour (UTC): a day with its maximum in the afternoon, and noise."""
    found = {}
    for origin, peak in zip(places, peaks.tolist(), strict=True):
        local = (np.arange(hours) + REGIONS[origin]) % 24
        curve = 0.55 + 0.45 * np.cos(2 * math.pi * (local - 15) / 24)
        found[origin] = tuple((peak * curve * rng.uniform(0.9, 1.1, hours)).tolist())
    return found


def _site(rng: np.random.Generator, model: str, size: float, region: str, gpu: str) -> Site:
    """The rates of a roofline: prompts by the GPU's arithmetic, answers by its memory."""
    usd, pflops, tb_s = GPUS[gpu]
    usd *= float(rng.uniform(1.0, 1.3))
    rates = {}
    for lane, (prompt, output, ttft_s) in LANES.items():
        prefill_s = prompt * 16e9 * size / (0.5e15 * pflops)
        if (lane == "long" and tb_s < _LARGE_TB_S) or 0.05 + prefill_s > ttft_s:
            continue
        decode_s = output * 16e9 * size / (tb_s * 1e12) / 24  # 24 sequences share a reading of the weights
        rates[lane] = 1 / (prefill_s + decode_s)
    prices = {
        PriceKind.ON_DEMAND: usd,
        PriceKind.SPOT: usd * float(rng.uniform(0.35, 0.7)),
        PriceKind.RESERVED: 0.6 * usd,
    }
    return Site(gpu, model, region, gpu, 1, rates, prices)


def measured(problem: Problem, limit_s: float) -> tuple[CapacityPlan, float, float]:
    """The placement, its wall time and its CPU time."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    plan = place(problem, gap=GAP, limit_s=limit_s)
    return plan, time.monotonic() - began_s, time.process_time() - began_cpu_s


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Problems of each size.")] = 3,
    crossing: Annotated[float, typer.Option(min=0, help="US dollars a GB for traffic between regions.")] = 0.0,
    sizes: Annotated[
        str, typer.Option(help="models x regions x groups x hours : limit in seconds, separated by commas.")
    ] = "3x4x4x24:60,20x10x10x24:300",
    json_file: JsonFile = None,
) -> None:
    """Time the placement."""
    runs: list[dict[str, Any]] = []
    table = plain_table(
        "Placement, one thread",
        *("models x regions x groups x hours", "limit s", "outcome", "wall s", "CPU s", "$/h", "gap", "most replicas"),
    )
    for size in sizes.split(","):
        counts, limit = size.split(":")
        models, regions, groups, hours = map(int, counts.split("x"))
        for seed in range(seeds):
            console.print(f"{size}, seed {seed} ...", style="dim")
            problem = drawn_problem(models, regions, groups, hours, seed, crossing)
            plan, wall_s, cpu_s = measured(problem, float(limit))
            usd, sites = plan.cost_usd / hours, range(len(problem.sites))
            replicas = max(sum(plan.count(site, hour) for site in sites) for hour in range(hours))
            found = {"size": counts, "seed": seed, "limit_s": float(limit), "outcome": plan.outcome.value}
            found |= {"wall_s": wall_s, "cpu_s": cpu_s, "usd_per_hour": usd, "gap": plan.gap, "max_replicas": replicas}
            runs.append(found)
            figures = (f"{wall_s:.1f}", f"{cpu_s:.1f}", f"{usd:,.0f}", f"{plan.gap:.2%}", str(replicas))
            table.add_row(counts, limit, plan.outcome.value, *figures)
    console.print(table)
    write_json({**run_facts(), "runs": runs}, json_file)


if __name__ == "__main__":
    typer.run(main)
