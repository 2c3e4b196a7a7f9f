"""The progress bar of a bench run, on standard error; nothing where that is not a terminal."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cli.bench.load import Load
from cli.bench.record import Record


class ProgressBar:
    """A bar a phase (warm-up, requests). It has no thread of its own: each call draws, so that the load generator keeps its time."""

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

    def __call__(self, phase: str, record: Record, load: Load) -> None:
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
