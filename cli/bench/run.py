"""One bench run from its settings: find the model, measure the vocabulary, warm up, play the load, summarise.

`command.py` calls `bench_run` inside an event loop; no printing here.
"""

import asyncio
import dataclasses
import datetime as dt
import platform
import resource
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import aiohttp

from cli.bench.client import Client
from cli.bench.load import Load
from cli.bench.prompts import Prompts, RequestOptions
from cli.bench.record import Record
from cli.bench.report import SCHEMA_VERSION, summary
from cli.bench.runner import play
from cli.bench.settings import Settings
from cli.bench.vocabulary import Vocabulary, Words, measure_vocabulary

_WARMUP_CONCURRENCY = 8
_MOST_FILES = 65_536
Progress = Callable[[str, Record, Load], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left: its report for JSON, and notes for people."""

    report: dict[str, Any]
    notes: list[str]
    interrupted: bool

    @property
    def all_answered(self) -> bool:
        """Whether requests were sent, and none of them failed."""
        requests = self.report["requests"]
        return bool(requests["ok"]) and not requests["failed"]


async def bench_run(settings: Settings, load: Load, stop: asyncio.Event, progress: Progress) -> Outcome:
    """Runs the bench; when `stop` is set it ends early with what there is. Raises EndpointError when the endpoint cannot be used."""
    allow_many_connections()
    record = Record()
    started = dt.datetime.now(dt.UTC)
    async with Client(settings.url, settings.endpoint, stream=settings.stream, api_key=settings.api_key(), timeout_s=settings.timeout) as client:
        model = settings.model or await client.first_model()
        vocabulary = await measure_vocabulary(client, model)
        options = RequestOptions(model, settings.endpoint, settings.stream, settings.ignore_eos, settings.shared_prefix_tokens)
        if settings.warmup and not stop.is_set():
            warmup = dataclasses.replace(
                load, arrivals_s=None, concurrency=min(settings.warmup, _WARMUP_CONCURRENCY), requests=settings.warmup, duration_s=None
            )
            # A seed of its own: a warm-up with the run's prompts would fill the prefix cache with them.
            await _watched("warm-up", client, Prompts(vocabulary, options, settings.seed + 1_000_003), warmup, Record(), stop, progress)
        if not stop.is_set():
            await _watched("requests", client, Prompts(vocabulary, options, settings.seed), load, record, stop, progress)
    report = _report(settings, model, vocabulary, started, stop.is_set(), record)
    notes = [f"prompt lengths: {vocabulary.how}"] if isinstance(vocabulary, Words) and "estimated" in vocabulary.how else []
    return Outcome(report, notes, stop.is_set())


def allow_many_connections() -> None:
    """Raises this process's limit of open files as far as it may: each open request is a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _watched(what: str, client: Client, prompts: Prompts, load: Load, record: Record, stop: asyncio.Event, progress: Progress) -> None:
    async def watch() -> None:
        while True:
            progress(what, record, load)
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    try:
        await play(client, prompts, load, record, stop)
    finally:
        watching.cancel()
    progress(what, record, load)


def _report(settings: Settings, model: str, vocabulary: Vocabulary, started: dt.datetime, interrupted: bool, record: Record) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"raylane": version("raylane"), "aiohttp": aiohttp.__version__, "python": platform.python_version()},
        "started_at": started.isoformat(timespec="seconds"),
        "interrupted": interrupted,
        "model": model,
        "prompts": vocabulary.how,
        "settings": settings.as_json(),
        **summary(record),
    }
