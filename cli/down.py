"""`raylane down`: takes a cluster on this machine down, from another terminal than the one that holds it."""

import shutil
import signal
from pathlib import Path
from typing import Annotated

import psutil
import typer

from cli.console import console, fail
from cli.run_dir import RunDir, known_clusters

_PATIENCE_S = 120.0


def down(
    name: Annotated[str | None, typer.Argument(help="The cluster's name; needed where several are up.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait before it is killed.")] = _PATIENCE_S,
) -> None:
    """Take a cluster on this machine down."""
    run_dir = RunDir(name) if name else _only_one()
    state = run_dir.state()
    if state is None:
        fail(f"no cluster {run_dir.name!r} is up on this machine")
    if not state.alive():
        _sweep(run_dir, state.ray_temp_dir)
        console.print(f"Cluster {run_dir.name!r} had ended without cleaning up; it is clean now.")
        return
    process = psutil.Process(state.pid)
    family = [process, *process.children(recursive=True)]
    process.send_signal(signal.SIGTERM)
    with console.status(f"stopping cluster {run_dir.name!r} (process {state.pid})"):
        _, alive = psutil.wait_procs([process], timeout=timeout)
    for member in family if alive else []:
        if member.is_running():
            member.kill()
    if alive:
        _sweep(run_dir, state.ray_temp_dir)
    console.print(f"Cluster {run_dir.name!r} is down.")


def _only_one() -> RunDir:
    states = known_clusters()
    if not states:
        fail("no cluster is up on this machine")
    if len(states) > 1:
        fail(f"several clusters are up; allowed: raylane down {' | '.join(state.name for state in states)}", code=2)
    return RunDir(states[0].name)


def _sweep(run_dir: RunDir, ray_temp_dir: str) -> None:
    if Path(ray_temp_dir).name.startswith("raylane-"):
        shutil.rmtree(ray_temp_dir, ignore_errors=True)
    run_dir.clear_state()
