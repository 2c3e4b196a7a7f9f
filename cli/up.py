"""`raylane up`: brings one cell up on this machine and holds it until Ctrl-C, SIGTERM or `raylane down`; with
`--address`, deploys it on a Ray cluster that runs already and returns (`join.py`).

What holds the cluster is a child of this process (`boot.py`): Ray's processes, the gateway and the engines are
below it and go with it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated
from urllib.parse import urlsplit

import psutil
import typer

from autoscaling.from_spec import scaling_problems
from cli.boot import Boot, BootError, hold_apart, served_models, tell_missing
from cli.console import complain, console, fail
from cli.departed import LossReporter
from cli.down import clean
from cli.gateway import page_link, port_problem
from cli.join import TokenFile, join, joined_state
from cli.private_ray import private_ray, shared_memory
from cli.run_dir import RunDir, State
from cluster.artifacts import missing_sources
from cluster.errors import InputError
from cluster.files import shipped
from cluster.spec import ClusterSpec, Region, load_spec
from cluster.urls import http_url
from deployments.engine.args import not_served
from deployments.engine.simulated.costs import cost_problems

_DETACH_PATIENCE_S = 120.0
"""Beyond what its models may take to start."""
_SAME_SIGNAL_S = 0.5
"""Signals that come within so long are one: whoever signals every process of a service reaches the holder twice."""


def up(
    spec: Annotated[
        Path | None, typer.Argument(help="The cluster spec. Default: the demo model on this machine.")
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="The region of the spec to run here. Required if it has several.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Overrides gateway.port of the spec.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the cluster is ready, and leave it running.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Deploy on the Ray cluster there, from one of its nodes, and return."),
    ] = None,
    token_file: TokenFile = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="With --address: the cell's secret. Default: the last one, or a new one."),
    ] = None,
) -> None:
    """Start a cluster on this machine, and run it until Ctrl-C; or deploy it on a Ray cluster."""
    cluster, home = _load(spec, region, port, holds_files=address is None)
    run_dir = RunDir(cluster.short_cell_name(home))
    if address is not None:
        if detach:
            fail("--detach: allowed only without --address, which returns by itself", code=2)
        join(cluster, home, run_dir, joined_state(run_dir.name, address, token_file), secret_file)
        return
    if secret_file is not None:
        fail("--secret-file: allowed only with --address", code=2)
    if cluster.gateway.tls is not None:
        fail("gateway.tls: allowed only with --address, and in a cell that `raylane deploy` brings up", code=2)
    _check_free(cluster, run_dir)
    run_dir.create()
    if detach:
        _detach(run_dir, max(model.health.startup_s for model in cluster.models) + _DETACH_PATIENCE_S)
        return
    if any(map(cluster.lacks_costs, cluster.views_in(home))):
        from cli.costs import with_estimates  # takes seconds to import

        cluster = with_estimates(cluster, home, run_dir.path)
    _run_until_stopped(cluster, home, run_dir)


def _run_until_stopped(cluster: ClusterSpec, home: Region, run_dir: RunDir) -> None:
    stop = threading.Event()
    _on_signals(stop)
    with run_dir.lock() as is_ours:
        if not is_ours:
            fail(
                f"another `raylane up` of cluster {run_dir.name!r} is starting or running",
                hint=f"raylane down {run_dir.name}",
            )
        clean(run_dir)
        pid = os.getpid()
        status = hold_apart(lambda: _held(cluster, home, run_dir, pid, stop))
        if status < 0 or status > 128:  # killed, or told twice to end
            clean(run_dir)
        if status < 0:
            fail(
                f"the process that held cluster {run_dir.name!r} was killed ({signal.Signals(-status).name}); "
                "everything it started has ended"
            )
        if status:
            raise typer.Exit(status)


def _load(path: Path | None, region: str | None, port: int | None, holds_files: bool) -> tuple[ClusterSpec, Region]:
    try:
        spec = load_spec(path or shipped("specs/local.yaml"))
        if region is None and len(spec.regions) > 1:
            fail(
                f"the spec has {len(spec.regions)} regions; allowed: --region "
                f"{' | '.join(r.name for r in spec.regions)}",
                code=2,
            )
        home = spec.regions[0] if region is None else spec.region(region)
        port = port or _own_port(home)
        if port is not None:
            spec = spec.model_copy(update={"gateway": spec.gateway.model_copy(update={"port": port})})
        missing = missing_sources(spec) if holds_files else []  # else `join` asks the nodes
        if problems := [*missing, *not_served(spec), *cost_problems(spec), *scaling_problems(spec)]:
            fail("; ".join(problems), code=2)
    except InputError:
        raise
    except ValueError as error:
        fail(str(error), code=2)
    return spec, home


def _own_port(region: Region) -> int | None:
    """The port of the region's endpoint, where that is on this machine: several cells of one spec then have a port
    each."""
    place = urlsplit(region.endpoint or "")
    return place.port if place.hostname in ("127.0.0.1", "::1", "localhost") else None


def _check_free(spec: ClusterSpec, run_dir: RunDir) -> None:
    state = run_dir.state()
    if state is not None and state.address:
        fail(f"cluster {run_dir.name!r} is deployed on Ray at {state.address}", hint=f"raylane down {run_dir.name}")
    if state is not None and state.alive():
        fail(
            f"cluster {run_dir.name!r} is already up at {state.url} (process {state.pid})",
            hint=f"raylane down {run_dir.name}",
        )
    host, port = spec.gateway.host, spec.gateway.port
    if problem := port_problem(host, port):
        fail(f"gateway.port = {port} on {host}: cannot listen: {problem}", hint="raylane up --port ANOTHER")


def _on_signals(stop: threading.Event) -> None:
    first: list[float] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if first and time.monotonic() - first[0] > _SAME_SIGNAL_S:  # the second time: at once
            os._exit(128 + number)
        first.append(time.monotonic())
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _held(spec: ClusterSpec, region: Region, run_dir: RunDir, pid: int, stop: threading.Event) -> int:
    """Holds the cluster until it is told to stop; returns the exit status. `pid`: the process that `raylane down`
    stops."""
    try:
        _hold(spec, region, run_dir, pid, stop)
    except BootError as error:
        complain(str(error), hint="raylane doctor")
        return 1
    finally:
        run_dir.clear_state()
    return 0


def _hold(spec: ClusterSpec, region: Region, run_dir: RunDir, pid: int, stop: threading.Event) -> None:
    started, began_unix_s = time.monotonic(), time.time()
    secret = run_dir.new_secret("secret")
    run_dir.new_secret("ray_token")
    cores = os.cpu_count() or 1
    needed = sum(spec.max_replicas(view) * view.cpus for view in spec.views_in(region))
    url = http_url(spec.gateway.host, spec.gateway.port)
    with (
        shared_memory(run_dir.path / "shared_memory") as memory,
        private_ray(max(cores, int(needed + 0.999)), run_dir.path / "ray_token") as ray,
    ):
        _on_signals(stop)  # again: Ray has put a handler of its own in place of ours
        began, stop_s = psutil.Process(pid).create_time(), spec.gateway.stop_s
        state = State(run_dir.name, pid, began, url, ray.temp_dir, ready=False, stop_s=stop_s)
        run_dir.write_state(state)
        boot = Boot(spec, region, run_dir, url, stop)
        if boot.run(secret):
            memory.look()  # what is killed from now on is known
            run_dir.write_state(replace(state, ready=True))
            _greet(spec, url, time.monotonic() - started, boot)
            LossReporter(run_dir.path, began_unix_s).tell_until(stop)
        console.print("\nStopping: running requests may finish, new ones are refused ...")
        boot.stop(ray.is_alive)
        memory.look()
    console.print(f"Cluster {run_dir.name!r} is down.")


def _greet(spec: ClusterSpec, url: str, took_s: float, boot: Boot) -> None:
    served = served_models(spec, boot.failing)
    model = served[0]
    console.print(
        f"\n[bold green]Ready[/] in {took_s:.0f} s: [bold]{url}/v1[/]  (models: {', '.join(m.name for m in served)})\n"
    )
    tell_missing(boot)
    for simulated in (one.name for one in served if one.engine == "simulated"):
        console.print(
            f"[black on yellow] SIMULATED [/] {simulated}: no model runs; answers are filler text, timed by the cost "
            "file\n"
        )
    if model.task == "generate":
        body = f'{{"model": "{model.name}", "messages": [{{"role": "user", "content": "Count from 3 to 8."}}]}}'
        console.print(
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n", markup=False
        )
    if console.is_terminal:
        with suppress(typer.Exit):
            console.print(f"  {page_link(url)}   (its page: once, within a minute)\n", markup=False)
    console.print("Watch it with `raylane status` or `raylane page`; Ctrl-C (or `raylane down`) takes it down.")


def _detach(run_dir: RunDir, patience_s: float) -> None:
    log = run_dir.path / "logs" / "up.log"
    command = [sys.executable, "-m", "cli.main", *(argument for argument in sys.argv[1:] if argument != "--detach")]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    deadline = time.monotonic() + patience_s
    with console.status(f"starting cluster {run_dir.name!r} (log: {log})"):
        while time.monotonic() < deadline:
            state = run_dir.state()
            if state is not None and state.pid == child.pid and state.ready:
                console.print(
                    f"[bold green]Ready[/]: {state.url}/v1 (process {child.pid}); `raylane down {run_dir.name}` takes "
                    "it down."
                )
                return
            if child.poll() is not None:
                fail(f"the cluster ended while it started:\n{_tail(log)}", hint="raylane doctor")
            time.sleep(0.2)
    child.terminate()
    fail(f"the cluster was not ready within {patience_s:.0f} s; its log: {log}", hint="raylane doctor")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
