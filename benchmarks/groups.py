"""What groups save: `python -m benchmarks.groups --traces FOLDER`.

A cheap group with a small context and a dear one with a large one (`infra/specs/two-groups.yaml`) against
one group of the dear: how many replicas does each side need for the same attainment, and what do they cost an hour?

First the simulator searches, for each side, the least hourly price at which all seeds reach the attainment. Then
(`--minutes` above 0) the real stack serves the same traffic with these replicas on simulated engines, the sides in
turns: what it attains is printed beside the prices. A ratio of prices is a result only where both attain the target.

Traffic: Azure's chat and code requests of 2023 and Mooncake's, with their own lengths; arrivals by Azure's chat trace,
stretched to `--rate`. Requests that exceed the largest context are left out and counted.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

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
from benchmarks.simulated_stack.client import run
from cli.private_cell import free_port
from cluster.files import shipped
from cluster.spec import ClusterSpec, Model, load_spec
from deployments.engine.simulated.costs import read_costs
from planning.simulation import Simulation, simulation_of
from planning.simulator.workload import plain_workload
from planning.workload.trace import Trace
from planning.workload.traces import read_trace

MOONCAKE = "mooncake_synthetic.jsonl.gz"
_WARM_S, _SIMULATED_S = 5.0, 300.0
Counts = Mapping[str, int]


def mix_in(folder: Path, context: int) -> tuple[LaneTraffic, int]:
    """The traffic, and how many requests of the traces exceed the context. Raises
    `planning.workload.trace.TraceError`."""
    sources, left_out = [], 0
    traces = [read_trace(folder / name) for name in (CHAT, CODE, MOONCAKE)]
    for trace in traces:
        fits = trace.prompt_tokens + np.maximum(1, trace.output_tokens) <= context
        left_out += int((~fits).sum())
        sources.append((trace.prompt_tokens[fits], trace.output_tokens[fits]))
    return LaneTraffic(np.diff(traces[0].arrived_s), sources), left_out


def one_group(spec: ClusterSpec, dear: str) -> ClusterSpec:
    """The spec with that group's replicas alone, as a model without groups."""
    (model,) = spec.models
    view = next(view for view in model.views if view.group == dear)
    return spec.model_copy(update={"models": (view.model_copy(update={"group": "default"}),)})


def with_counts(spec: ClusterSpec, counts: Counts) -> ClusterSpec:
    """The spec with so many replicas of each group, and pools that hold them."""
    content = spec.model_dump(mode="json")
    (model,) = content["models"]
    for section in model["groups"] or [model]:
        section["replicas"] = {"count": counts[section["name"] if model["groups"] else "default"]}
    for pool in content["regions"][0]["pools"]:
        pool["nodes"] = max(pool["nodes"], *counts.values())
    content["gateway"] |= {"port": free_port(), "access_log": False}
    return ClusterSpec.model_validate(content)


def usd_per_hour(spec: ClusterSpec) -> float:
    """What the replicas of the spec cost."""
    region = spec.regions[0]
    return sum(
        view.replicas.count * spec.pool_of(view, region).price_usd_per_hour * view.settings.ranks
        for view in spec.views_in(region)
    )


def simulated(spec: ClusterSpec, schedule: Trace) -> Simulation:
    (model,) = spec.models
    lengths = (schedule.arrived_s, schedule.prompt_tokens, schedule.output_tokens)
    work = plain_workload(*lengths, spec.classes[0].ttft_ms / 1e3, bounded=False)
    costs = {view.group: read_costs(view) for view in model.views}
    return simulation_of(spec, model, costs, work, None, False)


def attained(ttft_s: Any, slo_s: float) -> float:
    return float((np.nan_to_num(ttft_s, nan=np.inf) <= slo_s).mean())


class PriceSearch:
    """The least price at which every seed attains the target, in the simulator."""

    def __init__(self, schedules: list[Trace], target: float) -> None:
        self._schedules = schedules
        self._target = target
        self.runs = 0

    def holds(self, spec: ClusterSpec, counts: Counts) -> bool:
        changed = with_counts(spec, counts)
        for schedule in self._schedules:
            self.runs += 1
            out = simulated(changed, schedule).run()
            if attained(out.ttft_s, changed.classes[0].ttft_ms / 1e3) < self._target:
                return False
        return True

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


def cheapest(search: PriceSearch, spec: ClusterSpec, cheap: Model, dear: Model, limit_usd: float) -> Counts | None:
    """The counts of both groups with the least price below `limit_usd`."""
    region, best = spec.regions[0], None
    prices = {view.group: spec.pool_of(view, region).price_usd_per_hour * view.settings.ranks for view in (cheap, dear)}
    for number in range(1, int(limit_usd / prices[dear.group]) + 1):
        room = int((limit_usd - number * prices[dear.group]) / prices[cheap.group] - 1e-9)
        found = search.fewest(spec, {dear.group: number}, cheap.group, room)
        if found is not None:
            best = {cheap.group: found, dear.group: number}
            limit_usd = number * prices[dear.group] + found * prices[cheap.group]
    return best


def both_sides(search: PriceSearch, spec: ClusterSpec, cheap: str, dear: str) -> dict[str, ClusterSpec]:
    """One group of the dear, and both groups where these can hold it at less than one and a half times its price, each
    with the replicas that the search found."""
    alone = one_group(spec, dear)
    number = search.fewest(alone, {}, "default", 64)
    if number is None:
        raise typer.BadParameter(f"64 replicas of {dear} do not hold it; allowed: less", param_hint="--rate")
    sides = {"one group": with_counts(alone, {"default": number})}
    (model,) = spec.models
    views = {view.group: view for view in model.views}
    counts = cheapest(search, spec, views[cheap], views[dear], 1.5 * usd_per_hour(sides["one group"]))
    return sides if counts is None else {**sides, "two groups": with_counts(spec, counts)}


async def measured(spec: ClusterSpec, schedule: Trace, folder: Path) -> dict[str, Any]:
    """The stack of that spec under that traffic."""
    await asyncio.to_thread(folder.mkdir)
    async with stack_up(spec, folder):
        await asyncio.sleep(_WARM_S)
        began_s = time.monotonic()
        answers = await run(f"http://{spec.gateway.host}:{spec.gateway.port}", spec.models[0].name, schedule)
        elapsed_s = time.monotonic() - began_s
    late_ms = 1e3 * float(np.quantile(answers.late_s, 0.99))
    return {
        "attained": attained(answers.ttft_s, spec.classes[0].ttft_ms / 1e3),
        "errors": dict(answers.errors),
        "client_late_p99_ms": round(late_ms, 1),
        "elapsed_s": round(elapsed_s, 1),
    }


def main(
    traces: Traces,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests a second.")] = 30.0,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the simulated traffic.")] = 2,
    speed: Annotated[
        float, typer.Option(min=0.01, help="Of the engines; 0.1 with a tenth of the rate and ten times the TTFT.")
    ] = 1.0,
    ttft_ms: Annotated[float, typer.Option(min=1, help="The TTFT that counts as in time.")] = 2_000.0,
    target: Annotated[float, typer.Option(min=0.5, max=1, help="The attainment that both sides must reach.")] = 0.95,
    minutes: Annotated[float, typer.Option(min=0, help="Minutes of live traffic for each run; 0: none.")] = 0.0,
    rounds: Annotated[int, typer.Option(min=1, help="Live rounds; in each both sides run once.")] = 2,
    json_file: JsonFile = None,
) -> None:
    """Compare two groups with one group of the dear, at equal attainment."""
    spec = load_spec(shipped("specs/two-groups.yaml"))
    classes = (spec.classes[0].model_copy(update={"ttft_ms": ttft_ms, "attainment": min(target, 0.999)}),)
    spec = at_speed(spec.model_copy(update={"classes": classes}), speed)
    (model,) = spec.models
    mix, left_out = mix_in(traces, spec.context_of(model))
    search = PriceSearch([mix.draw(rate, _SIMULATED_S, seed) for seed in range(seeds)], target)
    sides = both_sides(search, spec, "cheap", "dear")
    plan: dict[str, Any] = {
        name: {"replicas": _counts(one), "usd_per_hour": usd_per_hour(one)} for name, one in sides.items()
    }
    console.print(_table(plan))

    async def work(folder: Path) -> dict[str, Any]:
        runs: list[dict[str, Any]] = []
        for turn in range(rounds if minutes else 0):
            schedule = mix.draw(rate, 60 * minutes, 1_000 + turn)
            for name in in_turns(list(sides), turn):
                found = await measured(
                    with_counts(sides[name], _counts(sides[name])), schedule, folder / f"{turn}{name[:3]}"
                )
                runs.append({"side": name, "round": turn, **found})
                console.print(f"round {turn + 1}, {name}: {found}", highlight=False)
        settings = {
            "rate": rate,
            "speed": speed,
            "ttft_ms": ttft_ms,
            "target": target,
            "left_out": left_out,
            "seeds": seeds,
        }
        return {"schema": 1, **run_facts(), "settings": settings, "plan": plan, "runs": runs, "simulated": search.runs}

    result = run_program(work)
    if "two groups" in plan:
        saved = 1 - plan["two groups"]["usd_per_hour"] / plan["one group"]["usd_per_hour"]
        console.print(f"two groups cost {saved:.1%} less; {left_out:,} requests over the context were left out")
    write_json(result, json_file)


def _counts(spec: ClusterSpec) -> dict[str, int]:
    return {view.group: view.replicas.count for view in spec.views_in(spec.regions[0])}


def _table(plan: Mapping[str, Mapping[str, Any]]) -> Table:
    table = plain_table("planned by the simulator", "side", "replicas", "USD/h", left=2)
    for name, side in plan.items():
        replicas = ", ".join(f"{count} {group}" for group, count in side["replicas"].items())
        table.add_row(name, replicas, f"{side['usd_per_hour']:.2f}")
    return table


if __name__ == "__main__":
    typer.run(main)
