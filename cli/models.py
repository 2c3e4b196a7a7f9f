"""`raylane models`: the files of models and adapters on this node: fetch, check, list, remove."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from cli.console import AsJson, Table, console, errors, fail, show, shown_span
from cluster.artifacts import ArtifactError, ModelCache, resolve_source
from cluster.artifacts.cache import CacheEntry
from cluster.artifacts.pull import damage, open_cache, origin_of, pull
from cluster.fetch_progress import FetchStep, ProgressReport
from cluster.spec import Artifacts, load_spec

models = typer.Typer(help="Fetch, check, list and remove the files of models on this node.", no_args_is_help=True)
_GIB = 1 << 30

SpecFile = Annotated[
    Path | None,
    typer.Option("--spec", help="The spec whose `artifacts` name the cache. Default: raylane's defaults."),
]
CacheFolder = Annotated[Path | None, typer.Option("--cache", help="The cache's folder, instead of the spec's.")]


@models.command("pull")
def pull_models(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SPEC|SOURCE...", help="Specs (.yaml), s3:// prefixes, hub names, folders."),
    ],
    spec_file: SpecFile = None,
    cache: CacheFolder = None,
    model: Annotated[str | None, typer.Option(help="Of a spec: only this model, with its adapters and draft.")] = None,
) -> None:
    """Fetch the files of models into this node's cache. A pull keeps what an interrupted one has left whole."""
    for settings, source in _chosen(sources, spec_file, cache, model):
        try:
            origin = origin_of(source, settings)
            if origin is None:
                console.print(f"{escape(source)}: used where it is ({escape(resolve_source(source))})")
                continue
            began = time.monotonic()
            with _progress(source) as report:
                held = pull(origin, open_cache(settings), report)
            console.print(
                f"{escape(source)}: {held.manifest().size / _GIB:.2f} GiB in {time.monotonic() - began:.1f} s, "
                f"at {escape(str(held.files))}"
            )
            held.release()
        except ArtifactError as error:
            fail(str(error), hint="raylane models pull   (it keeps what is whole)")


def _chosen(
    sources: Iterable[str], spec_file: Path | None, cache: Path | None, model: str | None
) -> Iterator[tuple[Artifacts, str]]:
    """Settings and source of each thing to fetch."""
    for source in sources:
        if not source.endswith((".yaml", ".yml")):
            yield _settings(spec_file, cache), source
            continue
        settings = _settings(Path(source), cache)
        known = load_spec(Path(source)).models
        models_of_spec = [one for one in known if model in (None, one.name)]
        if not models_of_spec:
            names = ", ".join(one.name for one in known)
            fail(f"--model {model!r}: not in {source}; allowed: {names}", code=2)
        for name in dict.fromkeys(name for one in models_of_spec for name in one.cached_sources):
            yield settings, name


def _settings(spec_file: Path | None, cache: Path | None) -> Artifacts:
    settings = Artifacts() if spec_file is None else load_spec(spec_file).artifacts
    return settings if cache is None else settings.model_copy(update={"cache": str(cache.expanduser().absolute())})


@contextmanager
def _progress(source: str) -> Iterator[ProgressReport]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(escape(source), total=None)

        def report(step: FetchStep, there: int, total: int) -> None:
            progress.update(task, description=f"{escape(source)}: {step}", completed=there, total=total)

        yield report


@models.command("list")
def list_models(
    spec_file: SpecFile = None,
    cache: CacheFolder = None,
    as_json: AsJson = False,
) -> None:
    """List what this node's cache holds: size, last use, and what is in use."""
    held = open_cache(_settings(spec_file, cache))
    entries = held.list()
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    table = Table("entry", "source", "GiB", "used", "state")
    for entry in sorted(entries, key=lambda one: -one.used_at):
        used = "now" if entry.in_use else f"{shown_span(max(0.0, time.time() - entry.used_at))} ago"
        table.add_row(escape(entry.name), escape(entry.source), f"{entry.size / _GIB:.2f}", used, _state(entry))
    show(table)
    limit = "no limit" if held.max_bytes is None else f"limit {held.max_bytes / _GIB:g} GiB"
    console.print(f"{sum(one.size for one in entries) / _GIB:.2f} GiB in {escape(str(held.folder))} ({limit})")


def _state(entry: CacheEntry) -> str:
    if entry.whole:
        return "[green]in use[/]" if entry.in_use else "whole"
    return "[yellow]being fetched[/]" if entry.in_use else "[yellow]interrupted[/]"


Entries = Annotated[list[str] | None, typer.Argument(metavar="[ENTRY...]", help="Entries, as `list` names them.")]


@models.command("verify")
def verify_models(entries: Entries = None, spec_file: SpecFile = None, cache: CacheFolder = None) -> None:
    """Read all files of this node's cache (or of some entries), and compare them with the checksums from their
    download. Names the files that the store had no checksum of."""
    held = open_cache(_settings(spec_file, cache))
    whole = [entry.name for entry in held.list() if entry.whole]
    if unknown := [name for name in entries or () if name not in whole]:
        fail(f"entry {unknown[0]!r}: not in {held.folder}; there are: {', '.join(whole) or 'none'}", code=2)
    damaged = [name for name in entries or whole if not _is_sound(held, name)]
    if damaged:
        fail(f"{len(damaged)} damaged", hint=f"raylane models evict {' '.join(damaged)}   (then pull again)")


def _is_sound(cache: ModelCache, name: str) -> bool:
    lease = cache.hold(name)
    if lease is None:
        return True  # evicted since it was listed
    unchecked: list[str] = []
    try:
        problems = damage(lease, read=True)
        unchecked = [file.name for file in lease.manifest().files if file.checked_by is None]
    except ArtifactError as error:
        problems = [str(error)]
    finally:
        lease.release()
    console.print(
        f"{escape(name)}: " + ("[green]sound[/]" if not problems else f"[red]{escape('; '.join(problems))}[/]")
    )
    if unchecked:
        console.print(f"  fetched without a checksum, by size and TLS alone: {escape(', '.join(unchecked))}")
    return not problems


@models.command("evict")
def evict_models(
    entries: Entries = None,
    unused: Annotated[bool, typer.Option("--unused", help="All that no process uses.")] = False,
    spec_file: SpecFile = None,
    cache: CacheFolder = None,
) -> None:
    """Remove entries from this node's cache. What a running process uses stays."""
    held = open_cache(_settings(spec_file, cache))
    if bool(entries) == unused:
        fail("allowed: either entries, as `raylane models list` names them, or --unused", code=2)
    chosen = entries or [entry.name for entry in held.list() if not entry.in_use]
    for name in chosen:
        try:
            held.evict(name)
        except ArtifactError as error:
            fail(str(error))
        console.print(f"{escape(name)}: removed")
