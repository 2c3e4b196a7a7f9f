"""`python -m benchmarks.simulated_stack --minutes 30`: brings the stack up, sends a load, runs it in the simulator as
well, and compares."""

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.harness import JsonFile, console, run_facts, run_program, write_json
from benchmarks.serving.sides import read_status, stack_up
from benchmarks.simulated_stack.client import Answers, run, traced
from benchmarks.simulated_stack.gauges import GaugeReading, Gauges, quantile
from benchmarks.simulated_stack.report import Measured, by_lane, render
from cli.private_cell import free_port
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec
from deployments.engine.simulated.costs import read_costs
from deployments.engine_model.cost_file import CostFile
from deployments.scheduling.policy import binding_of, policy_of
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import plain_workload
from planning.workload.trace import Trace
from planning.workload.traces import read_trace

_IDLE_S = 10.0
_WARM_S = 5.0


def main(
    trace: Annotated[Path, typer.Option(help="Azure 2023 CSV, Mooncake JSONL or a ledger.")],
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes of traffic.")] = 30.0,
    load_scale: Annotated[float, typer.Option(min=1e-3, help="A multiple of the trace's rate.")] = 10.0,
    json_file: JsonFile = None,
) -> None:
    """Measure the stack over simulated engines."""

    async def work(folder: Path) -> dict[str, Any]:
        spec = _on_own_port(load_spec(shipped("specs/simulated-h100.yaml")))
        context = spec.models[0].settings.max_model_len
        duration_s = 60 * minutes
        schedule = traced(read_trace(trace), duration_s, load_scale, context)
        settings = {"minutes": minutes, "load_scale": load_scale, "trace": trace.name}
        return {"schema": 1, **run_facts(), "settings": settings, **await _measure(spec, schedule, folder)}

    result = run_program(work)
    console.print(render(result))
    write_json(result, json_file)


def _on_own_port(spec: ClusterSpec) -> ClusterSpec:
    content = spec.model_dump(mode="json")
    content["gateway"] |= {"port": free_port(), "access_log": False}
    return ClusterSpec.model_validate(content)


async def _measure(spec: ClusterSpec, schedule: Trace, folder: Path) -> dict[str, Any]:
    url, model = f"http://{spec.gateway.host}:{spec.gateway.port}", spec.models[0]
    asked_s = time.monotonic()
    async with (
        stack_up(spec, folder) as server,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        start_s = time.monotonic() - asked_s
        console.print(
            f"{model.replicas.count} replicas up in {start_s:.0f} s; {len(schedule)} requests ...", style="dim"
        )
        await asyncio.sleep(_WARM_S)
        gauges = Gauges(session, await read_status(session, url, folder), server.tree())
        idle = await gauges.read()
        await asyncio.sleep(_IDLE_S)
        before = await gauges.read()
        began, client_s = time.monotonic(), time.process_time()
        answers = await run(url, model.name, schedule)
        elapsed_s, client_s = time.monotonic() - began, time.process_time() - client_s
        after = await gauges.read()
        memory = gauges.memory()
    costs = read_costs(model)
    console.print("the same in the simulator ...", style="dim")
    simulated = rehearse(spec, costs, schedule)
    return {
        "costs": {"basis": costs.basis, "hardware": costs.hardware},
        "replicas": model.replicas.count,
        "stream_interval": model.settings.stream_interval,
        "start_s": round(start_s, 1),
        "run": _run(schedule, answers, elapsed_s),
        "cpu_share": {**_shares(before, after, elapsed_s), "client": round(client_s / elapsed_s, 4)},
        "idle_share": _shares(idle, before, _IDLE_S),
        "memory_mib": {key: round(value, 1) for key, value in asdict(memory).items()},
        "late_ms": _late(before, after, answers),
        "ttft": by_lane(
            [lane.name for lane in spec.lanes], Measured(answers.ttft_s, answers.lane), Measured(*simulated)
        ),
    }


def _run(schedule: Trace, answers: Answers, elapsed_s: float) -> dict[str, Any]:
    return {
        "requests": len(schedule),
        "elapsed_s": round(elapsed_s, 2),
        "errors": dict(answers.errors),
        "unmarked": answers.unmarked,
        "output_tokens": answers.output_tokens,
        "output_tokens_per_s": round(answers.output_tokens / elapsed_s, 1),
        "tokens_per_event": round(answers.output_tokens / max(1, answers.events), 2),
        "events_per_s": round(answers.events / elapsed_s, 1),
        "pieces_per_s": round(answers.pieces / elapsed_s, 1),
    }


def _shares(before: GaugeReading, after: GaugeReading, elapsed_s: float) -> dict[str, float]:
    spent = {
        part: getattr(after, f"{part}_s") - getattr(before, f"{part}_s") for part in ("gateway", "replicas", "rest")
    }
    return {part: round(seconds / elapsed_s, 4) for part, seconds in spent.items()}


def _late(before: GaugeReading, after: GaugeReading, answers: Answers) -> dict[str, float | None]:
    bounds = {
        "gateway_p99": quantile(before.gateway_lag, after.gateway_lag, 0.99),
        "engine_p50": quantile(before.engine_late, after.engine_late, 0.5),
        "engine_p99": quantile(before.engine_late, after.engine_late, 0.99),
    }
    late = sorted(answers.late_s.tolist())
    return {
        **{key: None if bound is None else 1e3 * bound for key, bound in bounds.items()},
        "client_p99": round(1e3 * late[int(0.99 * len(late))], 2),
    }


def rehearse(spec: ClusterSpec, costs: CostFile, schedule: Trace) -> tuple[NDArray[np.float64], list[str]]:
    """TTFT (NaN: none) and lane of each request."""
    model = spec.models[0]
    work = plain_workload(
        schedule.arrived_s, schedule.prompt_tokens, schedule.output_tokens, spec.classes[0].ttft_ms / 1e3, bounded=False
    )
    settings = CellSettings(
        model.replicas.count,
        costs.limits(),
        policy_of(spec),
        binding_of(spec),
        model.settings.max_model_len,
        spec.patience_s(spec.classes[0]),
    )
    out = CellSimulator(settings, costs.cost_model(), work).run()
    return out.ttft_s, [spec.lanes[lane].name if lane >= 0 else "" for lane in out.lane]


if __name__ == "__main__":
    typer.run(main)
