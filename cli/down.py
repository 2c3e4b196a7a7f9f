"""`raylane down`: takes a cluster on this machine down, from another terminal than the one that holds it; or a cell off
the Ray cluster on which `raylane up --address` has deployed it."""

import contextlib
import shutil
import signal
from pathlib import Path
from typing import Annotated

import psutil
import typer

from cli.console import console, fail
from cli.join import TokenFile, joined_state, leave
from cli.private_ray import end_processes, processes_of, remove_shared_memory
from cli.run_dir import RunDir, known_clusters
from cluster.spec import load_spec

_PATIENCE_S = 120.0
"""Beyond what its gateways may take."""


def down(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|SPEC]", help="The cluster's name, or its spec. Required if several are up."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds to wait before the cluster is killed. Default: gateway.drain_s, and 2 min."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The Ray that it was deployed on, where this machine does not know."),
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Stop a cluster on this machine, or take a cell off a Ray cluster."""
    run_dir = RunDir(_name_in(name)) if name else _only_one()
    state = run_dir.state()
    if address is not None:
        state = joined_state(run_dir.name, address, token_file)
    if state is not None and state.address:
        leave(run_dir, state)
        return
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
        _, alive = psutil.wait_procs([process], timeout=timeout or state.stop_s + _PATIENCE_S)
        if alive:
            family = [process, *process.children(recursive=True)]
            end_processes(family, patience_s=0)
            clean(run_dir)
    console.print(f"Cluster {run_dir.name!r} is down.")


def _name_in(name: str) -> str:
    """The name itself, or that in the spec's file of that name."""
    if not Path(name).is_file():
        return name
    spec = load_spec(Path(name))
    if len(spec.regions) > 1:
        names = (spec.cell_name(region) for region in spec.regions)
        fail(f"{name}: has several cells; allowed: raylane down {' | '.join(names)}", code=2)
    return spec.name


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
