"""Days of traffic: ServeGen's deepseek-r1 day, thinned, and days with the rates of other days and models in its stead."""

import csv
import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planning.workload.servegen import drawn_trace, read_tables
from planning.workload.trace import Trace

DAY_S = 86_400.0
_STEP_S = 600.0
_MODEL = "deepseek-r1"
_RATES = "servegen_aggregate_rates_600s.csv.gz"


def recorded_day(traces: Path, requests: int, seed: int) -> Trace:
    """About so many requests of the recorded day: its rates by ten minutes, its clients' bursts and lengths."""
    clients = read_tables(traces, _MODEL)
    rates = day_rates(traces, _MODEL, 0)
    scale = requests / (rates.sum() * _STEP_S)
    return drawn_trace(clients, 0.0, DAY_S, scale, np.random.default_rng(seed), 10 * requests)


def other_day(traces: Path, model: str, day: int, requests: int, seed: int) -> Trace:
    """Another day's rates by ten minutes, with the bursts and lengths of the recorded day: each request comes when as large a share of that day's
    requests is expected to have come as had come of its own."""
    trace = recorded_day(traces, requests, seed)
    own, wanted = (np.concatenate(([0.0], np.cumsum(rates / rates.sum()))) for rates in (day_rates(traces, _MODEL, 0), day_rates(traces, model, day)))
    edges = np.arange(len(own)) * _STEP_S
    share = np.interp(trace.arrived_s, edges, own)
    return trace.at(np.interp(share, wanted, edges))


def day_rates(traces: Path, model: str, day: int) -> NDArray[np.float64]:
    """Requests a second by ten minutes, gaps filled by lines."""
    with gzip.open(traces / _RATES, "rt", encoding="utf-8") as lines:
        rows = [(float(row["t"]), float(row["rate_rps"])) for row in csv.DictReader(lines) if row["model"] == model]
    at_s, rates = np.array(rows).T
    return np.asarray(np.interp(day * DAY_S + np.arange(0.0, DAY_S, _STEP_S), at_s, rates))
