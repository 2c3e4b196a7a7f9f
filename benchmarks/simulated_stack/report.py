"""What a run showed, as plain data and as tables. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.harness import plain_table
from benchmarks.simulated_stack.client import Answers
from cli.bench.results import PERCENTILES, spread
from planning.simulator.outcome import SimulationOutcome


def by_lane(lanes: Sequence[str], answers: Answers, out: SimulationOutcome) -> dict[str, Any]:
    """The TTFT by lane and in all, live and simulated."""
    live, found = np.array(answers.lane), {}
    chosen = {name: (live == name, out.lane == number) for number, name in enumerate(lanes)}
    for name, (ours, theirs) in {**chosen, "all": (live != "", out.lane >= 0)}.items():
        columns = {"live": answers.ttft_s[ours], "simulated": out.ttft_s[theirs]}
        found[name] = {side: spread(ttft_s[~np.isnan(ttft_s)]) for side, ttft_s in columns.items()}
    return found


def render(result: dict[str, Any]) -> RenderableType:
    """The tables that people read."""
    facts = Table(title="The stack over simulated engines", title_justify="left", show_header=False)
    for key, value in _facts(result).items():
        facts.add_row(key, value)
    percentiles = [f"p{percent}" for percent in PERCENTILES]
    times = plain_table("TTFT, live / by the simulator (error)", "lane", "live", "simulated", *percentiles)
    for lane, sides in result["ttft_ms"].items():
        live, simulated = sides["live"], sides["simulated"]
        cells = [_cell(live[name], simulated[name]) for name in percentiles]
        times.add_row(lane, str(live["count"]), str(simulated["count"]), *cells)
    return Group(facts, times)


def _facts(result: dict[str, Any]) -> dict[str, str]:
    cores, memory, late, replicas = (result[key] for key in ("cores", "memory_mib", "late_p99_s", "replicas"))
    return {
        "requests": f"{result['requests']} in {result['elapsed_s']:.0f} s",
        "relayed": f"{result['output_tokens_per_s']:.0f} output tokens, {result['events_per_s']:.0f} events a second",
        "errors": ", ".join(f"{name} {count}" for name, count in result["errors"].items()) or "none",
        "% of a core": ", ".join(f"{part} {share:.1%}" for part, share in cores.items()),
        "of a replica": f"{cores['replicas'] / replicas:.2%}, {memory['replicas'] / replicas:.0f} MiB",
        "memory, MiB": ", ".join(f"{part} {mib:.0f}" for part, mib in memory.items()),
        "late, ms, p99 at most": ", ".join(
            f"{part} {'-' if late_s is None else f'{1e3 * late_s:.3g}'}" for part, late_s in late.items()
        ),
    }


def _cell(live: float | None, simulated: float | None) -> str:
    return f"{live:.1f} / {simulated:.1f} ms ({simulated / live - 1:+.0%})" if live and simulated else "-"
