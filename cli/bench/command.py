"""`raylane bench`: streaming load against any OpenAI-compatible endpoint. Reads options, shows progress, prints the
table, sets the exit code.

Exit codes: 0 all answered, 1 some request failed (or none was answered) or the endpoint cannot be used, 2 bad options,
130 interrupted.
"""

import asyncio
import json
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cli.bench.client import Endpoint, EndpointError
from cli.bench.load import BenchLoad
from cli.bench.results import RunRecord, rendered
from cli.bench.run import BenchOutcome, SettingError, Settings, bench_run
from cli.options import TRACE_HELP

_LENGTHS = "N, uniform:LOW:HIGH or lognormal:MEAN:SIGMA"


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}; allowed: a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}; allowed: a number") from None


Option = typer.Option
Whole = partial(typer.Option, metavar="N", parser=_whole)
Number = partial(typer.Option, metavar="X", parser=_number)
Seconds = partial(typer.Option, metavar="SECONDS", parser=_number)


def bench(
    url: Annotated[str, Option(help="The endpoint, without /v1.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, Option(help="The model. Default: the first that the endpoint lists.")] = None,
    api_key_env: Annotated[
        str | None, Option(metavar="NAME", help="The environment variable that holds the API key.")
    ] = None,
    endpoint: Annotated[Endpoint, Option(help="The route to load.")] = "completions",
    stream: Annotated[
        bool, Option(help="Ask for streamed answers; --no-stream measures end-to-end times only.")
    ] = True,
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Ask for answers of exactly --output-tokens (vLLM's ignore_eos).")
    ] = False,
    rate: Annotated[float | None, Number(help="Open loop: requests per second.")] = None,
    burstiness: Annotated[float, Number(help="Open loop: 1 is Poisson, below 1 burstier, above 1 more even.")] = 1.0,
    concurrency: Annotated[
        int | None, Whole(help="Closed loop: number of clients, each with one request at a time.")
    ] = None,
    requests: Annotated[int | None, Whole(help="Number of requests. Default: 100, or the whole trace.")] = None,
    duration: Annotated[float | None, Seconds(help="Send for this long; open requests then finish.")] = None,
    warmup: Annotated[int, Whole(help="Requests to send first, not counted.")] = 0,
    input_tokens: Annotated[str, Option(metavar="LENGTHS", help=f"Prompt lengths: {_LENGTHS}.")] = "128",
    output_tokens: Annotated[str, Option(metavar="LENGTHS", help=f"Answer lengths (max_tokens): {_LENGTHS}.")] = "128",
    shared_prefix_tokens: Annotated[int, Whole(help="Number of leading tokens that all prompts share.")] = 0,
    trace: Annotated[Path | None, Option(help=TRACE_HELP)] = None,
    limit: Annotated[int | None, Whole(help="Use only the first N requests of the trace.")] = None,
    time_scale: Annotated[float, Number(help="Multiply the trace's arrival times: 0.5 sends twice as fast.")] = 1.0,
    length_scale: Annotated[float | None, Number(help="Multiply all lengths.")] = None,
    max_model_len: Annotated[
        int | None, Whole(help="Scale all lengths down so that the longest request fits this context.")
    ] = None,
    timeout: Annotated[float, Seconds(help="Timeout of one request.")] = 600.0,
    seed: Annotated[int, Whole(help="Seed of lengths, times and prompts.")] = 0,
    json_file: Annotated[
        str | None, Option("--json", metavar="FILE", help="Write the figures as JSON; -: standard output.")
    ] = None,
    allow_errors: Annotated[bool, Option("--allow-errors", help="Exit with 0 even if requests failed.")] = False,
) -> None:
    """Load an OpenAI-compatible endpoint, and measure TTFT, ITL, TPOT and end-to-end latency."""
    options = {name: value for name, value in locals().items() if name not in ("json_file", "allow_errors")}
    try:
        settings = Settings(**options)
        settings.api_key()
        load = settings.load()
        _check_writable(json_file)
    except SettingError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{error.option}'") from error
    try:
        outcome = _run(settings, load)
    except EndpointError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except asyncio.CancelledError as error:
        raise typer.Exit(130) from error
    _print(settings, outcome, json_file)
    if outcome.interrupted:
        raise typer.Exit(130)
    if not outcome.all_answered and not allow_errors:
        raise typer.Exit(1)


def _run(settings: Settings, load: BenchLoad) -> BenchOutcome:
    """Runs the bench in an event loop of its own. Ctrl-C ends it early with what there is; a second one, at once with
    nothing."""

    async def main() -> BenchOutcome:
        stop = asyncio.Event()
        with ProgressBar(Console(stderr=True)) as progress:
            running = asyncio.ensure_future(bench_run(settings, load, stop, progress))
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGINT, lambda: running.cancel() if stop.is_set() else stop.set()
            )
            return await running

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _check_writable(json_file: str | None) -> None:
    """Before the run, not after it. Raises SettingError."""
    if json_file not in (None, "-") and not Path(str(json_file)).absolute().parent.is_dir():
        raise SettingError(
            "--json", f"{json_file!r} is in a folder that does not exist; allowed: a file in an existing folder, or -"
        )


def _print(settings: Settings, outcome: BenchOutcome, json_file: str | None) -> None:
    """The table on standard output, unless the JSON goes there: then on standard error."""
    title = f"{outcome.model} at {settings.url}" + (" (interrupted)" if outcome.interrupted else "")
    Console(stderr=json_file == "-").print(rendered(title, outcome.record, outcome.notes))
    text = json.dumps(outcome.as_json(), indent=2)
    if json_file == "-":
        print(text)
    elif json_file is not None:
        Path(json_file).write_text(text + "\n", encoding="utf-8")


class ProgressBar:
    """A bar a phase (warm-up, requests). It has no thread of its own: each call draws, so that the load generator keeps
    its time."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, phase: str, record: RunRecord, load: BenchLoad) -> None:
        """Draws how far a phase has come."""
        if self._bar.disable:
            return
        total = len(load.arrivals_s) if load.arrivals_s is not None else load.requests
        if phase not in self._tasks:
            self._tasks[phase] = self._bar.add_task(phase, total=total, counts="")
        failed = f", [red]{record.failed} failed[/]" if record.failed else ""
        counts = f"{record.ended}{'' if total is None else f'/{total}'}{failed}"
        self._bar.update(self._bar.tasks[self._tasks[phase]].id, completed=record.ended, counts=counts)
        self._bar.refresh()
