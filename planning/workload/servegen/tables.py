"""Reads ServeGen's tables: Parquet or CSV, of its clients' windows.

servegen_client_rates_600s   model, client, t, rate, dist, p1   every 600 s: requests a second, and the gaps' distribution (Gamma or Weibull)
                             with its shape `p1`
servegen_client_lengths_6h   model, client, t, field, min, q1 ... q99.9, max   every 6 h: quantiles of `input_tokens` and `output_tokens`
"""

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planning.workload.lengths import Quantiles
from planning.workload.renewal import GapKind

WINDOW_S = 600.0
RATES, LENGTHS = "servegen_client_rates_600s", "servegen_client_lengths_6h"
_SUFFIXES = (".parquet", ".csv", ".csv.gz")
_PERCENTS = {"min": 0.0, "max": 100.0}
_LEAST_SHAPE = 1e-3


class ServeGenError(ValueError):
    """Tables that cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class Window:
    """A client's requests from second `at_s` on, for `WINDOW_S` seconds."""

    at_s: float
    rate: float
    kind: GapKind
    shape: float


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its windows, and by the second from which they hold its lengths of prompts and outputs, ascending."""

    windows: tuple[Window, ...]
    prompt: tuple[tuple[float, Quantiles], ...]
    output: tuple[tuple[float, Quantiles], ...]


def read_tables(folder: Path, model: str) -> dict[str, Client]:
    """The clients of a model. Raises ServeGenError."""
    rates, lengths = _table(folder, RATES), _table(folder, LENGTHS)
    models = sorted({str(row["model"]) for row in rates})
    if model not in models:
        raise ServeGenError(f"servegen.model = {model!r}: not in {folder}; allowed: {', '.join(models)}")
    try:
        return _clients([row for row in rates if row["model"] == model], [row for row in lengths if row["model"] == model])
    except (KeyError, TypeError, ValueError) as error:
        raise ServeGenError(f"{folder}: its tables are not ServeGen's: {type(error).__name__}: {error}") from error


def _clients(rates: list[dict[str, Any]], lengths: list[dict[str, Any]]) -> dict[str, Client]:
    windows: dict[int, list[Window]] = {}
    for row in rates:
        kind: GapKind = "weibull" if str(row["dist"]).lower() == "weibull" else "gamma"
        window = Window(float(row["t"]), float(row["rate"]), kind, max(float(row["p1"]), _LEAST_SHAPE))
        windows.setdefault(int(row["client"]), []).append(window)
    tables: dict[tuple[int, str], list[tuple[float, Quantiles]]] = {}
    for row in lengths:
        tables.setdefault((int(row["client"]), str(row["field"])), []).append((float(row["t"]), _quantiles(row)))
    clients = {}
    for number in sorted(windows):
        prompt, output = (sorted(tables.get((number, field), ()), key=lambda known: known[0]) for field in ("input_tokens", "output_tokens"))
        if prompt and output:
            clients[f"client-{number}"] = Client(tuple(windows[number]), tuple(prompt), tuple(output))
    return clients


def _quantiles(row: dict[str, Any]) -> Quantiles:
    known = {
        _PERCENTS.get(name, float(name[1:]) if name[0] == "q" else -1.0): float(value)
        for name, value in row.items()
        if name in _PERCENTS or name[0] == "q"
    }
    percents = tuple(sorted(known))
    return Quantiles(percents, tuple(np.maximum.accumulate([max(known[percent], 1.0) for percent in percents]).tolist()))


def _table(folder: Path, name: str) -> list[dict[str, Any]]:
    found = next((folder / (name + suffix) for suffix in _SUFFIXES if (folder / (name + suffix)).is_file()), None)
    if found is None:
        raise ServeGenError(f"servegen.folder = {folder}: holds no {name}; allowed: a folder with it as {', '.join(_SUFFIXES)}")
    try:
        return _parquet(found) if found.suffix == ".parquet" else _csv(found)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise ServeGenError(f"{found}: cannot be read: {error}") from error


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ServeGenError(f"{path}: reading Parquet needs the package pyarrow; allowed: install it, or the table as CSV") from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except ArrowException as error:
        raise ServeGenError(f"{path}: cannot be read: {error}") from error
    return rows


def _csv(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
