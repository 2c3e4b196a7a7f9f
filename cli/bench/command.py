"""`raylane bench`: streaming load against any OpenAI-compatible endpoint. Reads options, shows progress, prints the
table, sets the exit code.

Exit codes: 0 all answered, 1 some request failed (or none was answered) or the endpoint cannot be used, 2 bad options,
130 interrupted.
"""

import asyncio
import json
import signal
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cli.bench.client import EndpointError
from cli.bench.load import BenchLoad
from cli.bench.results import RunRecord, rendered
from cli.bench.run import BenchOutcome, SettingError, Settings, bench_run
from cli.option_groups import with_groups
from cli.options import check_outputs


@with_groups
def bench(
    settings: Settings,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON; -: standard output.")
    ] = None,
) -> None:
    """Load an OpenAI-compatible endpoint, and measure TTFT, ITL, TPOT and end-to-end latency."""
    try:
        settings.api_key()
        load = settings.load()
        check_outputs(json=None if json_file in (None, "-") else Path(str(json_file)))
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
    if not outcome.all_answered:
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
