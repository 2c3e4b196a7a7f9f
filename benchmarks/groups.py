"""What groups save: `python -m benchmarks.groups --traces FOLDER`.

A cheap group with a small context and a dear one with a large one (`infra/specs/two-groups.yaml`) against
one group of the dear: how many replicas does each side need for the same attainment, and what do they cost an hour?

First the simulator searches, for each side, the least hourly price at which all seeds reach the attainment. Then
(`--minutes` above 0) the real stack serves the same traffic with these replicas on simulated engines, the sides in
turns: what it attains is printed beside the prices. A ratio of prices is a result only where both attain the target.

Traffic: Azure's chat and code requests of 2023 and Mooncake's, with their own lengths; arrivals by Azure's chat trace,
stretched to `--rate`. Requests that exceed the largest context are left out.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.harness import (
    JsonFile,
    Traces,
    at_speed,
    console,
    in_turns,
    plain_table,
    run_facts,
    run_program,
    write_json,
)
from benchmarks.lanes.mix import CHAT, CODE, LaneTraffic
from benchmarks.serving.sides import stack_up
from benchmarks.simulated_stack.client import run, simulation
from cli.private_cell import free_port
from cluster.files import shipped
from cluster.spec import ClusterSpec, Model, load_spec
from planning.workload.trace import Trace
from planning.workload.traces import read_trace

MOONCAKE = "mooncake_synthetic.jsonl.gz"
CHEAP, DEAR, ONLY = "cheap", "dear", "default"
"""The spec's groups, and that of a model without groups."""
_WARM_S, _SIMULATED_S = 5.0, 300.0
Counts = Mapping[str, int]


def mix_in(folder: Path, context: int) -> LaneTraffic:
    """The traffic. Raises `planning.workload.trace.TraceError`."""
    traces = [read_trace(folder / name) for name in (CHAT, CODE, MOONCAKE)]
    fitting = [trace.prompt_tokens + np.maximum(1, trace.output_tokens) <= context for trace in traces]
    sources = [(t.prompt_tokens[fits], t.output_tokens[fits]) for t, fits in zip(traces, fitting, strict=True)]
    return LaneTraffic(np.diff(traces[0].arrived_s), sources)


def one_group(spec: ClusterSpec) -> ClusterSpec:
    """The spec with the dear replicas alone, as a model without groups."""
    (model,) = spec.models
    view = next(view for view in model.views if view.group == DEAR)
    return spec.model_copy(update={"models": (view.model_copy(update={"group": ONLY}),)})


def with_counts(spec: ClusterSpec, counts: Counts) -> ClusterSpec:
    """The spec with so many replicas of each group, and pools that hold them."""
    content = spec.model_dump(mode="json")
    (model,) = content["models"]
    for section in model["groups"] or [model]:
        section["replicas"] = {"count": counts[section["name"] if model["groups"] else ONLY]}
    for pool in content["regions"][0]["pools"]:
        pool["nodes"] = max(pool["nodes"], *counts.values())
    content["gateway"] |= {"port": free_port(), "access_log": False}
    return ClusterSpec.model_validate(content)


def usd_per_hour(spec: ClusterSpec, view: Model) -> float:
    """Of a replica."""
    return spec.pool_of(view, spec.regions[0]).price_usd_per_hour * view.settings.ranks


def attained(ttft_s: NDArray[np.float64], spec: ClusterSpec) -> float:
    return float((np.nan_to_num(ttft_s, nan=np.inf) <= spec.classes[0].ttft_ms / 1e3).mean())


class PriceSearch:
    """The least price at which every seed attains the spec's target, in the simulator."""

    def __init__(self, schedules: Sequence[Trace]) -> None:
        self._schedules = schedules

    def holds(self, spec: ClusterSpec, counts: Counts) -> bool:
        changed = with_counts(spec, counts)
        outcomes = (simulation(changed, schedule).run() for schedule in self._schedules)
        return all(attained(out.ttft_s, spec) >= spec.classes[0].attainment for out in outcomes)

    def fewest(self, spec: ClusterSpec, counts: Counts, group: str, high: int) -> int | None:
        """The smallest number of that group's replicas, up to `high`, beside those of the other groups; by bisection,
        since more replicas never hurt."""
        if high < 1 or not self.holds(spec, {**counts, group: high}):
            return None
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.holds(spec, {**counts, group: middle}) else (middle, high)
        return high

    def cheapest(self, spec: ClusterSpec, limit_usd: float) -> Counts | None:
        """The counts of both groups with the least price below `limit_usd`."""
        best, prices = None, {view.group: usd_per_hour(spec, view) for view in spec.models[0].views}
        for number in range(1, int(limit_usd / prices[DEAR]) + 1):
            room = int((limit_usd - number * prices[DEAR]) / prices[CHEAP] - 1e-9)
            found = self.fewest(spec, {DEAR: number}, CHEAP, room)
            if found is not None:
                best = {CHEAP: found, DEAR: number}
                limit_usd = number * prices[DEAR] + found * prices[CHEAP]
        return best


def both_sides(search: PriceSearch, spec: ClusterSpec) -> dict[str, ClusterSpec]:
    """One group of the dear, and both groups where these can hold it at less than one and a half times its price, each
    with the replicas that the search found."""
    alone = one_group(spec)
    number = search.fewest(alone, {}, ONLY, 64)
    if number is None:
        raise typer.BadParameter("64 replicas of the dear do not hold it; allowed: less", param_hint="--rate")
    sides = {"one group": with_counts(alone, {ONLY: number})}
    counts = search.cheapest(spec, 1.5 * number * usd_per_hour(alone, alone.models[0]))
    return sides if counts is None else {**sides, "two groups": with_counts(spec, counts)}


async def measured(spec: ClusterSpec, schedule: Trace, folder: Path) -> dict[str, Any]:
    """The stack of that spec under that traffic."""
    await asyncio.to_thread(folder.mkdir)
    async with stack_up(spec, folder):
        await asyncio.sleep(_WARM_S)
        answers = await run(f"http://{spec.gateway.host}:{spec.gateway.port}", spec.models[0].name, schedule)
    late_ms = 1e3 * float(np.quantile(answers.late_s, 0.99))
    in_time = attained(answers.ttft_s, spec)
    return {"attained": in_time, "errors": dict(answers.errors), "client_late_p99_ms": round(late_ms, 1)}


def main(
    traces: Traces,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests a second.")] = 30.0,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the simulated traffic.")] = 2,
    speed: Annotated[
        float, typer.Option(min=0.01, help="Of the engines; 0.1 with a tenth of the rate and ten times the TTFT.")
    ] = 1.0,
    ttft_ms: Annotated[float, typer.Option(min=1, help="The TTFT that counts as in time.")] = 2_000.0,
    target: Annotated[float, typer.Option(min=0.5, max=0.999, help="The attainment of both sides.")] = 0.95,
    minutes: Annotated[float, typer.Option(min=0, help="Minutes of live traffic for each run; 0: none.")] = 0.0,
    rounds: Annotated[int, typer.Option(min=1, help="Live rounds; in each both sides run once.")] = 2,
    json_file: JsonFile = None,
) -> None:
    """Compare two groups with one group of the dear, at equal attainment."""
    spec = load_spec(shipped("specs/two-groups.yaml"))
    slo = spec.classes[0].model_copy(update={"ttft_ms": ttft_ms, "attainment": target})
    spec = at_speed(spec.model_copy(update={"classes": (slo,)}), speed)
    mix = mix_in(traces, spec.context_of(spec.models[0]))
    sides = both_sides(PriceSearch([mix.draw(rate, _SIMULATED_S, seed) for seed in range(seeds)]), spec)
    table = plain_table("planned by the simulator", "side", "replicas", "USD/h", left=2)
    plan: dict[str, dict[str, Any]] = {}
    for name, side in sides.items():
        views = side.views_in()
        counts = {view.group: view.replicas.count for view in views}
        usd = sum(view.replicas.count * usd_per_hour(side, view) for view in views)
        plan[name] = {"replicas": counts, "usd_per_hour": usd}
        table.add_row(name, ", ".join(f"{count} {group}" for group, count in counts.items()), f"{usd:.2f}")
    console.print(table)

    async def work(folder: Path) -> dict[str, Any]:
        runs: list[dict[str, Any]] = []
        for turn in range(rounds if minutes else 0):
            schedule = mix.draw(rate, 60 * minutes, 1_000 + turn)
            for name in in_turns(list(sides), turn):
                found = await measured(sides[name], schedule, folder / f"{turn}{name[:3]}")
                runs.append({"side": name, "round": turn, **found})
                console.print(f"round {turn + 1}, {name}: {found}", highlight=False)
        settings = {"rate": rate, "speed": speed, "ttft_ms": ttft_ms, "target": target, "seeds": seeds}
        return {"schema": 1, **run_facts(), "settings": settings, "plan": plan, "runs": runs}

    result = run_program(work)
    if "two groups" in plan:
        saved = 1 - plan["two groups"]["usd_per_hour"] / plan["one group"]["usd_per_hour"]
        console.print(f"two groups cost {saved:.1%} less")
    write_json(result, json_file)


if __name__ == "__main__":
    typer.run(main)
