"""What a run showed, as plain data and as tables. Pure."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.harness import plain_table

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Measured:
    """TTFT (seconds, NaN: none) and lane of each request."""

    ttft_s: NDArray[np.float64]
    lane: list[str]


def by_lane(lanes: list[str], live: Measured, simulated: Measured) -> list[dict[str, Any]]:
    """The quantiles of TTFT by lane and in all, live and simulated, and by how much the simulated one is off."""
    return [_compared(name, _of(live, name), _of(simulated, name)) for name in (*lanes, "all")]


def render(result: dict[str, Any]) -> RenderableType:
    """The tables that people read."""
    facts = Table(title="The stack over simulated engines", title_justify="left", show_header=False)
    for key, value in _facts(result).items():
        facts.add_row(key, value)
    columns = ("lane", "live", "simulated", *(f"p{100 * share:g}" for share in QUANTILES))
    times = plain_table("TTFT, live / by the simulator (error)", *columns)
    for line in result["ttft"]:
        cells = [_cell(line["live_ms"][key], line["simulated_ms"][key], line["error"][key]) for key in line["error"]]
        times.add_row(line["lane"], str(line["live"]), str(line["simulated"]), *cells)
    return Group(facts, times)


def _of(measured: Measured, name: str) -> NDArray[np.float64]:
    chosen = np.array([name in ("all", lane) for lane in measured.lane], dtype=np.bool_)
    values: NDArray[np.float64] = measured.ttft_s[chosen & ~np.isnan(measured.ttft_s)]
    return values


def _compared(name: str, live: NDArray[np.float64], simulated: NDArray[np.float64]) -> dict[str, Any]:
    ours, theirs = _quantiles(live), _quantiles(simulated)
    error = {key: None if (a := ours[key]) is None or not (b := theirs[key]) else round(b / a - 1, 4) for key in ours}
    return {
        "lane": name,
        "live": len(live),
        "simulated": len(simulated),
        "live_ms": ours,
        "simulated_ms": theirs,
        "error": error,
    }


def _quantiles(values: NDArray[np.float64]) -> dict[str, float | None]:
    return {
        f"p{100 * share:g}": round(1e3 * float(np.quantile(values, share)), 3) if len(values) else None
        for share in QUANTILES
    }


def _facts(result: dict[str, Any]) -> dict[str, str]:
    run, cpu, idle, memory, late = (result[key] for key in ("run", "cpu_share", "idle_share", "memory_mib", "late_ms"))
    each = cpu["replicas"] / result["replicas"]
    errors = ", ".join(f"{name} {count}" for name, count in run["errors"].items()) or "none"
    return {
        "costs": f"{result['costs']['basis']} ({result['costs']['hardware']})",
        "replicas": f"{result['replicas']}, up in {result['start_s']:.0f} s",
        "requests": f"{run['requests']} in {run['elapsed_s']:.0f} s, {run['output_tokens_per_s']:.0f} output tokens/s",
        "tokens per event": f"{result['stream_interval']} ({run['tokens_per_event']:.1f} a stream's event on average)",
        "events relayed": f"{run['events_per_s']:.0f} a second",
        "errors": errors + (f"; {run['unmarked']} answers without the mark" if run["unmarked"] else ""),
        "gateway": f"{cpu['gateway']:.1%} of a core",
        "replicas' CPU": f"{cpu['replicas']:.1%} of a core in all ({each:.2%} each); the rest of Ray {cpu['rest']:.1%}",
        "this client": f"{cpu['client']:.1%} of a core; p99 {late['client_p99']:.1f} ms late",
        "idle": f"gateway {idle['gateway']:.1%}, replicas {idle['replicas']:.1%}, the rest {idle['rest']:.1%}",
        "memory": f"{memory['all']:.0f} MiB in {memory['processes']} processes; gateway {memory['gateway']:.0f}, a "
        f"replica {memory['replica']:.0f}",
        "late": f"gateway's loop p99 at most {_ms(late['gateway_p99'])}, engines' turns p99 at most "
        f"{_ms(late['engine_p99'])}",
    }


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:g} ms"


def _cell(live: float | None, simulated: float | None, error: float | None) -> str:
    return (
        "-" if live is None or simulated is None or error is None else f"{live:.1f} / {simulated:.1f} ms ({error:+.0%})"
    )
