"""`raylane down`: takes a cluster on this machine down, from another terminal than the one that holds it."""

import contextlib
import shutil
import signal
from pathlib import Path
from typing import Annotated

import psutil
import typer

from cli.console import console, fail
from cli.private_ray import end_processes, processes_of, remove_shared_memory
from cli.run_dir import RunDir, known_clusters

_PATIENCE_S = 120.0


def down(
    name: Annotated[str | None, typer.Argument(help="The cluster's name. Required if several are up.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait before the cluster is killed.")] = _PATIENCE_S,
) -> None:
    """Stop a cluster on this machine."""
    run_dir = RunDir(name) if name else _only_one()
    state = run_dir.state()
    if state is None:
        fail(f"no cluster {run_dir.name!r} is up on this machine")
    process = state.process()
    if process is None:
        clean(run_dir)
        console.print(f"Cluster {run_dir.name!r} had ended without cleaning up; its leftovers are removed.")
        return
    with (
        console.status(f"stopping cluster {run_dir.name!r} (process {state.pid})"),
        contextlib.suppress(psutil.NoSuchProcess),
    ):
        process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs([process], timeout=timeout)
        if alive:
            family = [process, *process.children(recursive=True)]
            end_processes(family, patience_s=0)
            clean(run_dir)
    console.print(f"Cluster {run_dir.name!r} is down.")


def _only_one() -> RunDir:
    states = known_clusters(dead_too=True)
    if not states:
        fail("no cluster is up on this machine")
    if len(states) > 1:
        fail(f"several clusters are up; allowed: raylane down {' | '.join(state.name for state in states)}", code=2)
    return RunDir(states[0].name)


def clean(run_dir: RunDir) -> None:
    """Ends and removes what an `up` that was killed has left, if one has."""
    state = run_dir.state()
    if state is not None and Path(state.ray_temp_dir).name.startswith("raylane-"):
        end_processes(processes_of(state.ray_temp_dir), patience_s=2)
        shutil.rmtree(state.ray_temp_dir, ignore_errors=True)
    remove_shared_memory(run_dir.path / "shared_memory")
    run_dir.clear_state()
