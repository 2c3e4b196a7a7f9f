"""`python -m benchmarks.drift`: how soon drift is found at which rates, and how often alarms come on recorded traffic.

Drawn traffic: independent requests with log-normal lengths, as the worksheet says for some time, then with prompts
twice as long. Recorded traffic: each day against what the day before lets expect, and a trace against its other half.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.harness import JsonFile, console, plain_table, run_facts, write_json
from deployments.traffic.counts import Stream, Stretches
from planning.drift.comparison import Comparison, compare
from planning.drift.measures import DriftQuantity
from planning.drift.recording import expected_of, stretches_of_trace
from planning.workload.lengths import LogNormal
from planning.workload.servegen import drawn_trace, read_tables
from planning.workload.trace import Trace
from planning.workload.traces import read_requests
from tests.planning.drift.drawn import MONDAY_S, Traffic, sheet_of, then

DAY_S, WITHIN_MIN = 86_400.0, 10
RATES = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
PROMPTS = Stream("m", "any", "all")


def minutes_until(traffic: Traffic, history_min: int, seed: int) -> float:
    """From the doubling to the alarm that names it; infinite: none within an hour."""
    recorded = traffic.scaled(prompt=2).draw(60, seed + 1_000, history_min)
    if history_min:
        recorded = then(traffic.draw(history_min, seed), recorded)
    found = compare(sheet_of(traffic), recorded)
    named = (drift for drift in found.drifts if drift.quantity is DriftQuantity.PROMPT_TOKENS)
    return min(((one.raised_unix_s - MONDAY_S) / 60 - history_min for one in named), default=np.inf)


def power(seeds: int) -> Iterator[dict[str, float]]:
    """By rate, spread of the lengths' logarithms and history: how many are named within ten minutes, and when."""
    for sigma in (1.0, 1.3):
        for history_min in (0, 180):
            for rate in RATES:
                traffic = replace(Traffic(per_s=rate), prompt=LogNormal(1_000, sigma))
                waits = np.array([minutes_until(traffic, history_min, seed) for seed in range(seeds)])
                quantiles = np.quantile(waits, (0.5, 0.9), method="higher")
                row = {"per_s": rate, "sigma": sigma, "history_min": history_min, "seeds": seeds}
                yield row | {
                    "within": float((waits <= WITHIN_MIN).mean()),
                    "median_min": float(quantiles[0]),
                    "p90_min": float(quantiles[1]),
                }


def false_alarms(seeds: int) -> Iterator[dict[str, float]]:
    """Runs of ten hours as the worksheet says, with any alarm; `cluster` requests come at once."""
    for rate, cluster in ((0.1, 1), (0.3, 1), (0.5, 4), (2.0, 1), (4.0, 8)):
        traffic = Traffic(per_s=rate, cluster=cluster)
        sheet = sheet_of(traffic)
        alarms = sum(bool(compare(sheet, traffic.draw(600, seed)).drifts) for seed in range(seeds))
        yield {"per_s": rate, "cluster": cluster, "runs": seeds, "with_alarm": alarms}


def days_of(folder: Path, model: str, days: int, scale: float) -> list[Trace]:
    """So many days drawn from ServeGen's tables, one after the other. Clients whose lengths are not stored are left
    out."""
    clients = read_tables(folder, model)
    rng = np.random.default_rng(0)
    return [drawn_trace(clients, DAY_S * day, DAY_S * (day + 1), scale, rng, 20_000_000) for day in range(days)]


def counted(trace: Trace, day: int) -> Stretches:
    """The requests of all clients as one stream."""
    plain = replace(trace, model=None, traffic_class=None, region=None)
    return stretches_of_trace(plain, PROMPTS, MONDAY_S + DAY_S * day)


def figures(name: str, found: Comparison) -> dict[str, object]:
    """How many alarms and incidents there are, and how long something was off (hours)."""
    off_s = sum((one.ended_unix_s or found.to_unix_s) - one.raised_unix_s for one in found.incidents)
    kinds = sorted({f"{drift.quantity} {drift.direction}" for drift in found.drifts})
    return {
        "what": name,
        "alarms": len(found.drifts),
        "incidents": len(found.incidents),
        "off_h": off_s / 3_600,
        "kinds": kinds,
    }


def on_days(folder: Path, model: str, days: int, scale: float) -> Iterator[dict[str, object]]:
    """Each day against the day before, whose hours are expected again."""
    drawn = days_of(folder, model, days, scale)
    for day in range(1, days):
        before = expected_of(counted(drawn[day - 1], day - 1))
        yield figures(f"{model}, day {day + 1} against day {day}", compare(before, counted(drawn[day], day)))


def on_halves(path: Path) -> Iterator[dict[str, object]]:
    """A trace against itself, and its second half against its first."""
    trace = read_requests(path)
    yield figures(f"{path.name} against itself", compare(expected_of(counted(trace, 0)), counted(trace, 0)))
    middle_s = trace.arrived_s[0] + trace.span_s / 2
    halves = [trace.take(np.flatnonzero(part)) for part in (trace.arrived_s <= middle_s, trace.arrived_s > middle_s)]
    expected = expected_of(counted(halves[0].at(halves[0].arrived_s - halves[0].arrived_s[0]), 0))
    later = counted(halves[1].at(halves[1].arrived_s - halves[1].arrived_s[0]), 0)
    yield figures(f"{path.name}, second half against first", compare(expected, later))


def main(
    traces: Annotated[
        Path | None, typer.Option(help="The folder of recorded traces; without it only drawn ones.")
    ] = None,
    model: Annotated[str, typer.Option(help="ServeGen's model in that folder.")] = "m-small",
    days: Annotated[int, typer.Option(min=2, help="Days of ServeGen.")] = 4,
    scale: Annotated[float, typer.Option(min=1e-6, help="Of ServeGen's rates.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds of each drawn case; 0: none is drawn.")] = 100,
    json_file: JsonFile = None,
) -> None:
    """Prints tables, and writes them as JSON."""
    rows: dict[str, list[dict[str, object]]] = {"power": [], "false_alarms": [], "recorded": []}
    if seeds:
        rows["power"] = list(power(seeds))  # type: ignore[arg-type]
        rows["false_alarms"] = list(false_alarms(seeds))  # type: ignore[arg-type]
    if traces is not None:
        for name in ("azure2023_conv.csv.gz", "azure2023_code.csv.gz", "mooncake_synthetic.jsonl.gz"):
            if scale == 1.0 and (traces / name).is_file():
                rows["recorded"] += on_halves(traces / name)
        rows["recorded"] += on_days(traces, model, days, scale)
    for title, found in rows.items():
        if found:
            table = plain_table(title, *map(str, found[0]))
            for row in found:
                table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
            console.print(table)
    write_json({**run_facts(), **rows}, json_file)


if __name__ == "__main__":
    typer.run(main)
