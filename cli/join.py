"""Deploys a cell on a Ray cluster that runs already, and takes it down again. No process of raylane's own remains: the
cell lives in Serve's applications and in the directory, and Ray goes on without it.

It runs on a node of that cluster, as the user that runs Ray; on the head, it finds the cell's run directory. The token
of Ray and the secret of the cell come from files.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.boot import Boot, BootError, served_models, tell_missing
from cli.console import console, errors, fail
from cli.run_dir import RunDir, State, read_secret
from cluster.files import write_private
from cluster.spec import ClusterSpec, Region

TokenFile = Annotated[
    Path | None,
    typer.Option(envvar="RAY_AUTH_TOKEN_PATH", show_envvar=True, dir_okay=False, help="With --address: Ray's token."),
]
_CONNECT_S = 5.0
_ANSWER_S = 10.0
_IDLE_S = 120.0
"""How long Serve may take to end what has drained (seconds)."""


def join(spec: ClusterSpec, region: Region, run_dir: RunDir, known: State, secret_file: Path | None) -> None:
    """Deploys the cell and returns when it is ready. Ends the command when the nodes are not as they must be, before
    anything is deployed. `known`: the state to write, with Ray's address and token."""
    before = run_dir.state()
    if before is not None and before.alive() and not before.address:
        fail(f"cluster {spec.name!r} is already up at {before.url} (process {before.pid})", hint="raylane down")
    run_dir.create()
    secret = _secret_of(run_dir, secret_file)
    stop = threading.Event()
    with _connected(known.address, known.token_file):
        nodes = _check_nodes(spec, region)
        started = time.monotonic()
        run_dir.write_state(known)
        signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
        try:
            boot = Boot(spec, region, run_dir, None, stop, nodes, _estimates(spec, region))
            ready = boot.run(secret)
        except BootError as error:
            fail(f"{error}\n  the cell stays as it is", hint=f"raylane down {run_dir.name}")
        except KeyboardInterrupt:
            ready = False
        if not ready:
            fail(f"interrupted; cluster {spec.name!r} goes on starting", hint=f"raylane down {run_dir.name}")
        run_dir.write_state(replace(known, ready=True))
    _greet(spec, run_dir, time.monotonic() - started, boot)


def _estimates(spec: ClusterSpec, region: Region) -> dict[str, str]:
    """Cost files by group, from data sheets, of the models that have none: as JSON, since Serve's controller may run on
    another node."""
    views = [view for view in spec.views_in(region) if spec.lacks_costs(view)]
    if not views:
        return {}
    from cli.costs import estimate  # takes seconds to import

    found = {view.group_key: estimate(spec, region, view) for view in views}
    return {name: one.model_dump_json() for name, one in found.items() if one is not None}


def joined_state(name: str, address: str, token_file: Path | None) -> State:
    """The state of a cell on the Ray at `address`. Ends the command where that is no address, or there is no such
    file."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        fail(f"--address {address!r}: allowed: host:port of Ray's head", code=2)
    if token_file is not None and not token_file.is_file():
        fail(f"--token-file {token_file}: no such file", code=2)
    token = "" if token_file is None else str(token_file.absolute())
    return State(name, 0, 0.0, "", "", ready=False, address=address, token_file=token)


def leave(run_dir: RunDir, state: State) -> None:
    """Takes the cell's applications and its directory off the Ray cluster, which goes on. Running requests may finish
    as they may at a stop of `raylane up`."""
    with _connected(state.address, state.token_file), console.status(f"stopping cluster {state.name!r}"):
        _take_down()
    run_dir.clear_state()
    console.print(f"Cluster {state.name!r} is down; Ray at {state.address} goes on.")


def _take_down() -> None:
    import ray
    from ray import serve

    from deployments.app import our_apps
    from deployments.cell.directory import find_directory
    from deployments.gateway.deployment import GATEWAY_APP

    directory: Any = None
    with contextlib.suppress(ValueError):  # an earlier `down` was interrupted after it
        directory = find_directory()
        ray.get(directory.closing.remote(), timeout=_ANSWER_S)
    ours = our_apps(serve.status())
    # The gateways first: they let running requests end, and the models' replicas have nothing left to drain then.
    for name in sorted(ours, key=lambda name: name != GATEWAY_APP):
        serve.delete(name, _blocking=name == GATEWAY_APP)
    deadline = time.monotonic() + _IDLE_S
    while (left := serve.status().applications.keys() & ours) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        fail(
            f"Serve has not ended {', '.join(sorted(left))} in {_IDLE_S:.0f} s", hint="raylane down again; serve status"
        )
    if directory is not None:
        ray.kill(directory)
    if not serve.status().applications:  # else others use it
        serve.shutdown()


def _secret_of(run_dir: RunDir, secret_file: Path | None) -> str:
    """The cell's secret: the given one, else that of an earlier `up`, else a new one. In the run directory afterwards,
    for the commands."""
    kept = run_dir.path / "secret"
    if secret_file is None:
        return read_secret(kept) if kept.is_file() else run_dir.new_secret("secret")
    secret = read_secret(secret_file, "--secret-file ")
    if len(secret) < 32:
        fail(f"--secret-file {secret_file}: {len(secret)} characters; allowed: at least 32", code=2)
    write_private(kept, secret)
    return secret


@contextmanager
def _connected(address: str, token_file: str) -> Iterator[None]:
    """Connects this process to Ray for the block. Ends the command where that is not possible."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        fail(f"Ray at {address} does not answer: {error}", hint="ray status, on the cluster's head")
    for stale in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        os.environ.pop(stale, None)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if token_file:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_file}
    else:
        errors.print(
            "[bold yellow]no token[/]: whoever reaches Ray's ports can read the cell's secret; start Ray with "
            "RAY_AUTH_MODE=token"
        )
    import ray

    try:
        ray.init(address=address, namespace="raylane", log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # of many types: a wrong token, another version, no node of the cluster here
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        problem = " ".join(lines[:6]) or type(error).__name__
        fail(f"Ray at {address} cannot be joined: {problem}", hint="run this on a node of the cluster, with its token")
    try:
        yield
    finally:
        ray.shutdown()


def _check_nodes(spec: ClusterSpec, region: Region) -> int:
    """Ends the command when the nodes are not as they must be. Returns how many may have a gateway."""
    from deployments.cell import node_check

    with console.status("asking the nodes for their versions"):
        paths = (path for view in spec.views_in(region) for path in node_check.paths_on_nodes(view, spec).values())
        nodes = node_check.look_at_nodes(paths)
    if problems := node_check.node_problems(spec, region, node_check.expected_versions(nodes), nodes):
        fail("nothing was deployed:\n  " + "\n  ".join(problems), code=2)
    return node_check.gateway_nodes(spec, region, nodes)


def _greet(spec: ClusterSpec, run_dir: RunDir, took_s: float, boot: Boot) -> None:
    served = ", ".join(model.name for model in served_models(spec, boot.failing))
    console.print(
        f"\n[bold green]Ready[/] in {took_s:.0f} s: models {served}; gateways "
        f"listen on {spec.gateway.host}:{spec.gateway.port} of their nodes\n"
    )
    tell_missing(boot)
    for url in run_dir.urls():
        console.print(f"  for commands from elsewhere: --url {url} and RAYLANE_SECRET", markup=False)
    console.print(
        f"\nWatch it with `raylane status`; `raylane down {run_dir.name}` takes it down, and leaves Ray running."
    )
