"""What the three programs here have in common: a folder of their own, an event loop, and no process left at the end."""

import asyncio
import json
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import typer
import uvloop
from rich.console import Console

from cli.bench.run import allow_many_connections
from cli.server_process import ServerError, become_subreaper, end_descendants

console = Console() if Console().is_terminal else Console(width=140)


def run_program(work: Callable[[Path], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Runs `work` with an empty folder; exits with 1 and the server's log when a server does not start. Ctrl-C or SIGTERM stops what was started."""
    allow_many_connections()
    become_subreaper()

    async def main(folder: Path) -> dict[str, Any]:
        task = asyncio.ensure_future(work(folder))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    with tempfile.TemporaryDirectory(prefix="bench-") as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(main(Path(folder)))
        except asyncio.CancelledError:
            raise typer.Exit(128 + signal.SIGTERM) from None
        except ServerError as error:
            console.print(f"error: a server {error}", style="red", markup=False)
            raise typer.Exit(1) from error
        finally:
            end_descendants()


def write_json(result: dict[str, Any], file: Path | None) -> None:
    """Writes the result, where a file was named."""
    if file is not None:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
