"""One bench run from its settings: find the model, measure the vocabulary, warm up, send the load, summarise. No
printing here."""

import asyncio
import dataclasses
import os
import re
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.bench.client import BenchClient, Endpoint
from cli.bench.load import BenchLoad, drawn_load, run, traced_load
from cli.bench.prompts import Prompts, RequestOptions, Words, measure_vocabulary
from cli.bench.results import RunRecord, figures_of
from cli.options import TRACE_HELP
from planning.workload.lengths import Lengths, parse_lengths
from planning.workload.trace import TraceError
from planning.workload.traces import read_requests

DEFAULT_REQUESTS = 100
MAX_REQUESTS = 10_000_000


class SettingError(ValueError):
    """An option that cannot be used: its name and, in the message, its value and what is allowed."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


Option = typer.Option
Whole = partial(typer.Option, metavar="N")
Positive = partial(typer.Option, metavar="X", min=1e-3, max=1e6)
Seconds = partial(typer.Option, metavar="SECONDS", min=1e-3, max=1e6)
_LENGTHS = "N, uniform:LOW:HIGH or lognormal:MEAN:SIGMA"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `raylane bench`."""

    url: Annotated[str, Option(help="The endpoint, without /v1.")] = "http://127.0.0.1:8000"
    model: Annotated[str | None, Option(help="The model. Default: the first that the endpoint lists.")] = None
    api_key_env: Annotated[
        str | None, Option(metavar="NAME", help="The environment variable that holds the API key.")
    ] = None
    endpoint: Annotated[Endpoint, Option(help="The route to load.")] = "completions"
    stream: Annotated[bool, Option(help="Ask for streamed answers; --no-stream measures end-to-end times only.")] = True
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Ask for answers of exactly --output-tokens (vLLM's ignore_eos).")
    ] = False
    rate: Annotated[float | None, Positive(help="Open loop: requests per second.")] = None
    concurrency: Annotated[
        int | None, Whole(min=1, max=100_000, help="Closed loop: number of clients, each with one request at a time.")
    ] = None
    requests: Annotated[
        int | None, Whole(min=1, max=MAX_REQUESTS, help="Number of requests. Default: 100, or the whole trace.")
    ] = None
    duration: Annotated[float | None, Seconds(help="Send for this long; open requests then finish.")] = None
    warmup: Annotated[int, Whole(min=0, max=100_000, help="Requests to send first, not counted.")] = 0
    input_tokens: Annotated[str, Option(metavar="LENGTHS", help=f"Prompt lengths: {_LENGTHS}.")] = "128"
    output_tokens: Annotated[str, Option(metavar="LENGTHS", help=f"Answer lengths (max_tokens): {_LENGTHS}.")] = "128"
    trace: Annotated[Path | None, Option(help=TRACE_HELP)] = None
    timeout: Annotated[float, Seconds(help="Timeout of one request.")] = 600.0
    seed: Annotated[int, Whole(min=0, max=(1 << 63) - 1, help="Seed of lengths, times and prompts.")] = 0

    def api_key(self) -> str | None:
        """The key in the environment variable that `api_key_env` names. Raises SettingError when it is not set."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise SettingError(
                "--api-key-env",
                f"{self.api_key_env!r} is not set in the environment; allowed: a variable that holds the key",
            )
        return key

    def load(self) -> BenchLoad:
        """What to send. Raises SettingError."""
        self._check_pairs()
        rate, concurrency, requests, duration_s = self.rate, self.concurrency, self.requests, self.duration
        if self.trace is not None:
            try:
                trace = read_requests(self.trace)
            except TraceError as error:
                raise SettingError("--trace", str(error)) from error
            return traced_load(
                trace, self.seed, rate=rate, concurrency=concurrency, requests=requests, duration_s=duration_s
            )
        if requests is None and duration_s is None:
            requests = DEFAULT_REQUESTS
        prompt = _lengths("--input-tokens", self.input_tokens)
        output = _lengths("--output-tokens", self.output_tokens)
        return drawn_load(
            prompt, output, self.seed, rate=rate, concurrency=concurrency, requests=requests, duration_s=duration_s
        )

    def _check_pairs(self) -> None:
        if not re.match(r"https?://[^/]+", self.url):
            raise SettingError("--url", f"{self.url!r} is not a URL; allowed: http://HOST:PORT or https://HOST:PORT")
        if self.rate is not None and self.concurrency is not None:
            raise SettingError(
                "--rate", f"{self.rate:g} together with --concurrency {self.concurrency}; allowed: one of them"
            )
        if self.rate is None and self.concurrency is None and self.trace is None:
            raise SettingError(
                "--rate", "missing, and so is --concurrency; allowed: one of them, or --trace with its own times"
            )
        if self.rate is not None and self.duration is not None and self.rate * self.duration > MAX_REQUESTS:
            raise SettingError(
                "--duration",
                f"{self.duration:g} at --rate {self.rate:g}; allowed: at most {MAX_REQUESTS} requests in all",
            )


def _lengths(option: str, text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise SettingError(option, str(error)) from error


_WARMUP_CONCURRENCY = 8
_MAX_FILES = 65_536
Progress = Callable[[str, RunRecord, BenchLoad], None]


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """What a run left, and notes for people."""

    model: str
    record: RunRecord
    notes: list[str]
    interrupted: bool

    @property
    def all_answered(self) -> bool:
        """Whether requests were sent, and none of them failed."""
        return bool(self.record.ok) and not self.record.failed

    def as_json(self) -> dict[str, Any]:
        about = {"model_id": self.model, "interrupted": self.interrupted, "notes": self.notes}
        return {**about, **figures_of(self.record)}


async def bench_run(settings: Settings, load: BenchLoad, stop: asyncio.Event, progress: Progress) -> BenchOutcome:
    """Runs the bench; when `stop` is set it ends early with what there is. Raises EndpointError when the endpoint
    cannot be used."""
    allow_many_connections()
    record = RunRecord()
    async with BenchClient(
        settings.url, settings.endpoint, stream=settings.stream, api_key=settings.api_key(), timeout_s=settings.timeout
    ) as client:
        model = settings.model or await client.first_model()
        vocabulary = await measure_vocabulary(client, model)
        options = RequestOptions(model, settings.endpoint, settings.stream, settings.ignore_eos)
        if settings.warmup and not stop.is_set():
            warmup = dataclasses.replace(
                load,
                arrivals_s=None,
                concurrency=min(settings.warmup, _WARMUP_CONCURRENCY),
                requests=settings.warmup,
                duration_s=None,
            )
            # A seed of its own: a warm-up with the run's prompts would fill the prefix cache with them.
            prompts, unused = Prompts(vocabulary, options, settings.seed + 1_000_003), RunRecord()
            async with _watched(partial(progress, "warm-up", unused, warmup)):
                await run(client, prompts, warmup, unused, stop)
        if not stop.is_set():
            async with _watched(partial(progress, "requests", record, load)):
                await run(client, Prompts(vocabulary, options, settings.seed), load, record, stop)
    notes = [str(change) for change in load.changes]
    notes += (
        [f"prompt lengths: {vocabulary.how}"] if isinstance(vocabulary, Words) and "estimated" in vocabulary.how else []
    )
    return BenchOutcome(model, record, notes, stop.is_set())


def allow_many_connections() -> None:
    """Raises this process's limit of open files as far as it may: each open request is a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    desired = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft < desired:
        resource.setrlimit(resource.RLIMIT_NOFILE, (desired, hard))


@asynccontextmanager
async def _watched(tell: Callable[[], None]) -> AsyncIterator[None]:
    """Tells twice a second how far it is, and once more at the end."""

    async def watch() -> None:
        while True:
            tell()
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
    tell()
