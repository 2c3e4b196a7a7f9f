"""Reads a profile from files, as LLMServingSim's profiler writes them (its bundle: `tp<N>/dense.csv` and so on), plain
or gzipped.

What is looked for, in a folder or behind a prefix of file names: `dense`, `per_sequence`, `attention` and, for mixtures
of experts, `moe`. A time's unit is in its column's name (`time_us`, `latency(ns)`, `ms`). Whole experts are profiled on
one GPU: without a table of its own, a degree of tensor parallelism takes that of `tp1`.
"""

import csv
import gzip
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cluster.hardware import Gpu
from planning.costs.profile import Profile

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "layer": ("layer", "layer_name", "name", "op"),
    "tokens": ("tokens", "num_tokens", "total_len", "input"),
    "sequences": ("sequences", "num_sequences", "num_requests", "num_seqs", "batch_size"),
    "prefill_chunk": ("prefill_chunk", "chunk", "prefill_tokens"),
    "kv_prefill": ("kv_prefill", "prefill_kv", "past", "kv_cache"),
    "n_decode": ("n_decode", "num_decodes", "decodes"),
    "kv_decode": ("kv_decode", "decode_kv"),
    "activated_experts": ("activated_experts", "num_experts", "experts", "active_experts"),
}
_UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_TIME = re.compile(r"^(?:time|latency|duration|mean|median)?[ _(\[]*(ns|us|ms|s)[)\]]?$", re.IGNORECASE)
_KINDS: Mapping[str, tuple[str, ...]] = {
    "dense": ("layer", "tokens"),
    "per_sequence": ("layer", "sequences"),
    "attention": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"),
    "moe": ("tokens", "activated_experts"),
}
_REQUIRED = ("dense", "per_sequence", "attention")


class ProfileError(ValueError):
    """A profile that cannot be read; the message names file, column and value."""


def read_profile(place: Path, tensor_parallel: int = 1) -> Profile:
    """The profile in a folder (the bundle, or its `tp<N>`), or of the files whose paths begin with `place`. Raises
    ProfileError."""
    files = {kind: _find(place, kind, tensor_parallel) for kind in _KINDS}
    missing = [kind for kind in _REQUIRED if files[kind] is None]
    if missing:
        raise ProfileError(
            f"{place}: no table of {', '.join(missing)} for {tensor_parallel} GPUs; allowed: a folder with "
            f"tp{tensor_parallel}/{missing[0]}.csv, or the beginning of the files' names (NAME__{missing[0]}.csv.gz)"
        )
    tables = {kind: list(_rows(file, _KINDS[kind])) for kind, file in files.items() if file is not None}
    return Profile(
        dense=_by_layer(tables["dense"]),
        per_sequence=_by_layer(tables["per_sequence"]),
        attention=[(*(int(float(each)) for each in sizes), us) for sizes, us in tables["attention"]],  # type: ignore[misc]  # four sizes
        moe=[(int(float(sizes[0])), int(float(sizes[1])), us) for sizes, us in tables.get("moe", ())],
    )


def profiled_gpu(place: Path) -> str | None:
    """The name of the GPU in the bundle's `meta.yaml`, beside the tables or a folder above; None: there is none."""
    for folder in (place, place.parent):
        file = folder / "meta.yaml"
        if file.is_file():
            found = re.search(r"^gpu:\s*[\"']?([^\n\"']+)", file.read_text(encoding="utf-8"), re.MULTILINE)
            return found.group(1).strip() if found else None
    return None


def is_of_gpu(title: str, gpu: Gpu) -> bool:
    """Whether a driver's title (`NVIDIA A100-SXM4-80GB`) is that of a GPU (`a100-80g`)."""
    words = re.split(r"[\s_-]+", title.lower())
    return all(word in words or f"{word}b" in words for word in gpu.name.lower().split("-"))


def _find(place: Path, kind: str, tensor_parallel: int) -> Path | None:
    degrees = (tensor_parallel, 1) if kind == "moe" else (tensor_parallel,)
    names = (f"{kind}.csv", f"{kind}.csv.gz")
    if not place.is_dir():
        stems = [place.name, *(re.sub(r"tp\d+$", f"tp{degree}", place.name) for degree in degrees)]
        candidates = [
            place.with_name(f"{stem}{mark}{name}") for stem in stems for mark in ("__", "_") for name in names
        ]
    else:
        folders = [place / f"tp{degree}" for degree in degrees]
        if re.fullmatch(r"tp\d+", place.name):
            folders = [place, *(place.parent / f"tp{degree}" for degree in degrees)]
        candidates = [folder / name for folder in [*folders, place] for name in names]
    return next((file for file in candidates if file.is_file()), None)


def _rows(file: Path, keys: Sequence[str]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The sizes of each row, as text, and its time in microseconds."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as text:
        reader = csv.DictReader(text)
        columns = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = columns
        chosen = [_column(file, columns, key) for key in keys]
        time, unit = _time_column(file, columns)
        for row in reader:
            try:
                if not 0 < (value := float(row[time])) < math.inf:
                    raise ValueError("allowed: above 0")
                yield tuple(row[column].strip() for column in chosen), value * unit
            except (AttributeError, TypeError, ValueError) as error:
                raise ProfileError(f"{file}: line {reader.line_num}: {time} = {row.get(time)!r}: {error}") from error


def _column(file: Path, columns: Sequence[str], key: str) -> str:
    found = next((column for column in columns if column.lower() in _ALIASES[key]), None)
    if found is None:
        raise ProfileError(
            f"{file}: no column {key!r} in {', '.join(columns) or 'an empty file'}; allowed: {', '.join(_ALIASES[key])}"
        )
    return found


def _time_column(file: Path, columns: Sequence[str]) -> tuple[str, float]:
    for column in columns:
        found = _TIME.match(column)
        if found:
            return column, _UNITS[found.group(1).lower()]
    raise ProfileError(f"{file}: no column with a time in {', '.join(columns)}; allowed: time_us, latency(ns), ...")


def _by_layer(rows: Sequence[tuple[tuple[str, ...], float]]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for (layer, size), us in rows:
        found.setdefault(layer, []).append((int(float(size)), us))
    return found
