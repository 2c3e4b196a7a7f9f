"""ServeGen's description of production traffic (github.com/alibaba/ServeGen, 2025): not a trace, so requests are drawn
from its tables of windows.

servegen_client_rates_600s   model, client, t, rate, dist, p1   every 600 s: requests a second, and the gaps'
                             distribution (Gamma or Weibull) with its shape `p1`
servegen_client_lengths_6h   model, client, t, field, min, q1 ... q99.9, max   every 6 h: quantiles of `input_tokens`
                             and `output_tokens`

The tables are Parquet or CSV. The rate of a window was counted, so the number of requests drawn in it is that count
(scaled), and gaps of the window's shape are stretched to fill it: a renewal process at that rate would, at the recorded
shapes (down to 0.01), miss the count by far. Prompt and output are drawn independently; a window without lengths takes
those of the client's last window before it, else of its first.
"""

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planning.workload.arrivals import FloatArray, GapKind, gaps
from planning.workload.lengths import IntArray, Quantiles
from planning.workload.trace import Labels, Trace

WINDOW_S = 600.0
RATES, LENGTHS = "servegen_client_rates_600s", "servegen_client_lengths_6h"
_SUFFIXES = (".parquet", ".csv", ".csv.gz")
_PERCENTS = {"min": 0.0, "max": 100.0}
_MIN_SHAPE = 1e-3


class ServeGenError(ValueError):
    """Tables that cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class ClientWindow:
    """A client's requests from second `at_s` on, for `WINDOW_S` seconds."""

    at_s: float
    rate: float
    kind: GapKind
    shape: float


@dataclass(frozen=True, slots=True)
class ServeGenClient:
    """One client: its windows, and by the second from which they hold its lengths of prompts and outputs, ascending."""

    windows: tuple[ClientWindow, ...]
    prompt: tuple[tuple[float, Quantiles], ...]
    output: tuple[tuple[float, Quantiles], ...]


def read_tables(folder: Path, model: str) -> dict[str, ServeGenClient]:
    """The clients of a model. Raises ServeGenError."""
    rates, lengths = _table(folder, RATES), _table(folder, LENGTHS)
    models = sorted({str(row["model"]) for row in rates})
    if model not in models:
        raise ServeGenError(f"servegen.model = {model!r}: not in {folder}; allowed: {', '.join(models)}")
    try:
        return _clients(
            [row for row in rates if row["model"] == model], [row for row in lengths if row["model"] == model]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ServeGenError(f"{folder}: its tables are not ServeGen's: {type(error).__name__}: {error}") from error


def _clients(rates: list[dict[str, Any]], lengths: list[dict[str, Any]]) -> dict[str, ServeGenClient]:
    windows: dict[int, list[ClientWindow]] = {}
    for row in rates:
        kind: GapKind = "weibull" if str(row["dist"]).lower() == "weibull" else "gamma"
        window = ClientWindow(float(row["t"]), float(row["rate"]), kind, max(float(row["p1"]), _MIN_SHAPE))
        windows.setdefault(int(row["client"]), []).append(window)
    tables: dict[tuple[int, str], list[tuple[float, Quantiles]]] = {}
    for row in lengths:
        tables.setdefault((int(row["client"]), str(row["field"])), []).append((float(row["t"]), _quantiles(row)))
    clients = {}
    for number in sorted(windows):
        prompt, output = (
            sorted(tables.get((number, field), ()), key=lambda known: known[0])
            for field in ("input_tokens", "output_tokens")
        )
        if prompt and output:
            clients[f"client-{number}"] = ServeGenClient(tuple(windows[number]), tuple(prompt), tuple(output))
    return clients


def _quantiles(row: dict[str, Any]) -> Quantiles:
    known = {
        _PERCENTS.get(name, float(name[1:]) if name[0] == "q" else -1.0): float(value)
        for name, value in row.items()
        if name in _PERCENTS or name[0] == "q"
    }
    percents = tuple(sorted(known))
    return Quantiles(
        percents, tuple(np.maximum.accumulate([max(known[percent], 1.0) for percent in percents]).tolist())
    )


def _table(folder: Path, name: str) -> list[dict[str, Any]]:
    found = next((folder / (name + suffix) for suffix in _SUFFIXES if (folder / (name + suffix)).is_file()), None)
    if found is None:
        raise ServeGenError(
            f"servegen.folder = {folder}: holds no {name}; allowed: a folder with it as {', '.join(_SUFFIXES)}"
        )
    try:
        return _parquet(found) if found.suffix == ".parquet" else _csv(found)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise ServeGenError(f"{found}: cannot be read: {error}") from error


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ServeGenError(
            f"{path}: reading Parquet needs the package pyarrow; allowed: install it, or the table as CSV"
        ) from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except ArrowException as error:
        raise ServeGenError(f"{path}: cannot be read: {error}") from error
    return rows


def _csv(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def drawn_trace(
    clients: dict[str, ServeGenClient],
    from_s: float,
    to_s: float,
    rate_scale: float,
    rng: np.random.Generator,
    maximum: int,
) -> Trace:
    """Requests of the seconds `from_s` to `to_s`, at `rate_scale` times the rate; `from_s` becomes second 0.

    Raises ServeGenError where they would be more than `maximum`.
    """
    chosen = [
        (code, client, window)
        for code, client in enumerate(clients.values())
        for window in client.windows
        if window.at_s < to_s and from_s < window.at_s + WINDOW_S
    ]
    expected = sum(window.rate for _, _, window in chosen) * WINDOW_S * rate_scale
    if expected > maximum:
        raise ServeGenError(
            f"servegen.rate_scale = {rate_scale:g}: {expected:.3g} requests are expected; allowed: at most {maximum}"
        )
    parts = [
        (
            code,
            times,
            _lengths(client.prompt, window.at_s, len(times), rng),
            _lengths(client.output, window.at_s, len(times), rng),
        )
        for code, client, window in chosen
        if len(times := _times(window, rate_scale, rng))
    ]
    if not parts:
        return Trace(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    codes = np.repeat([part[0] for part in parts], [len(part[1]) for part in parts]).astype(np.int32)
    arrived, prompt, output = (np.concatenate([part[column] for part in parts]) for column in (1, 2, 3))
    whole = Trace(arrived, prompt, output, tenant=Labels(tuple(clients), codes)).at(arrived - from_s)
    return whole.take(np.flatnonzero((whole.arrived_s >= 0) & (whole.arrived_s < to_s - from_s)))


def _times(window: ClientWindow, rate_scale: float, rng: np.random.Generator) -> FloatArray:
    count = int(window.rate * WINDOW_S * rate_scale + rng.random())  # rounded up as often as its fraction says
    if not count:
        return np.zeros(0)
    until = np.cumsum(gaps(window.kind, window.shape, count + 1, rng))
    if until[-1] <= 0:
        return np.sort(window.at_s + WINDOW_S * rng.random(count))  # gaps so uneven that all of them are 0 to a float
    until_s = np.nextafter(
        window.at_s + WINDOW_S, 0
    )  # gaps that are 0 to a float would put the last ones on the next window's edge
    times: FloatArray = np.minimum(window.at_s + WINDOW_S * (until[:-1] / until[-1]), until_s)
    return times


def _lengths(known: tuple[tuple[float, Quantiles], ...], at_s: float, count: int, rng: np.random.Generator) -> IntArray:
    before = [quantiles for since_s, quantiles in known if since_s <= at_s]
    return (before[-1] if before else known[0][1]).sample(count, rng)
