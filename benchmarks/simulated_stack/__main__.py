"""`python -m benchmarks.simulated_stack --minutes 30`: brings the stack up, sends a load, runs it in the simulator as
well, and compares."""

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import numpy as np
import typer

from benchmarks.harness import JsonFile, console, run_facts, run_program, write_json
from benchmarks.serving.sides import read_status, stack_up
from benchmarks.simulated_stack.client import run, simulation
from benchmarks.simulated_stack.gauges import Gauges, quantile
from benchmarks.simulated_stack.report import by_lane, render
from cli.private_cell import free_port
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec
from planning.workload.scaling import fitted, load_scaled, window
from planning.workload.trace import Trace
from planning.workload.traces import read_trace

_WARM_S = 5.0


def main(
    trace: Annotated[Path, typer.Option(help="Azure 2023 CSV, Mooncake JSONL or a ledger.")],
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes of the trace.")] = 30.0,
    load_scale: Annotated[float, typer.Option(min=1e-3, help="As many users, times this.")] = 10.0,
    json_file: JsonFile = None,
) -> None:
    """Measure the stack over simulated engines."""

    async def work(folder: Path) -> dict[str, Any]:
        spec = _on_own_port(load_spec(shipped("specs/simulated-h100.yaml")))
        whole = fitted(read_trace(trace), spec.models[0].settings.max_model_len)
        if 60 * minutes > (long_s := float(whole.arrived_s[-1])):
            raise typer.BadParameter(
                f"{minutes:g}: {trace.name} is {long_s / 60:.1f} minutes long", param_hint="--minutes"
            )
        schedule = window(load_scaled(whole, load_scale), 0.0, 60 * minutes)
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
    async with (
        stack_up(spec, folder) as server,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        console.print(f"{model.replicas.count} replicas are up; {len(schedule)} requests ...", style="dim")
        await asyncio.sleep(_WARM_S)
        gauges = Gauges(session, await read_status(session, url, folder), server.tree())
        before = await gauges.read()
        began_s, client_s = time.monotonic(), time.process_time()
        answers = await run(url, model.name, schedule)
        elapsed_s, client_s = time.monotonic() - began_s, time.process_time() - client_s
        after = await gauges.read()
        memory = gauges.memory()
    console.print("the same in the simulator ...", style="dim")
    out = simulation(spec, schedule).run()
    cores = {part: (after.cpu_s[part] - spent_s) / elapsed_s for part, spent_s in before.cpu_s.items()}
    return {
        "replicas": model.replicas.count,
        "requests": len(schedule),
        "elapsed_s": round(elapsed_s, 2),
        "errors": dict(answers.errors),
        "output_tokens_per_s": round(answers.output_tokens / elapsed_s, 1),
        "events_per_s": round(answers.events / elapsed_s, 1),
        "cores": {**cores, "client": client_s / elapsed_s},
        "memory_mib": memory,
        "late_p99_s": {
            "gateway": quantile(before.gateway_lag, after.gateway_lag, 0.99),
            "engines": quantile(before.engine_late, after.engine_late, 0.99),
            "client": float(np.quantile(answers.late_s, 0.99)),
        },
        "ttft_ms": by_lane([lane.name for lane in spec.lanes], answers, out),
    }


if __name__ == "__main__":
    typer.run(main)
