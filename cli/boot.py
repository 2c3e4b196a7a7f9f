"""Brings a cell up on the Ray that runs, shows how far it is, and takes it down again, in a child process of `raylane
up`.

The child has a session of its own, with Ray and all engines below it. Whoever stops a program may signal its whole
process group (a terminal at Ctrl-C, `kill -- -PGID`, many supervisors). Ray's processes would get that signal, too, and
without them nothing can end in order: running requests break, the driver waits a minute for Ray's head and aborts. So
they live in another session, and the group has one process: the parent, which hands SIGINT and SIGTERM on. If either of
the two is killed, the other cleans up.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import FrameType, MappingProxyType
from typing import Any, cast

import requests
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from cli.console import console
from cli.gateway import get
from cli.run_dir import RunDir
from cli.starts import sentence_of
from cluster.launch import RAY_ENVIRONMENT
from cluster.spec import ClusterSpec, Model, Region, model_of
from deployments.engine.fate_share import signal_when_parent_dies
from deployments.gateway.operators.report import STATUS_PATH, CellReport
from deployments.starts.start import GIVEN_UP_AFTER, CellStarts, FailingModel
from deployments.wire import WireError, from_plain

_POLL_S = 0.25
_ANSWER_S = 2.0
_DEPLOYED_S = 30.0
_STOP_MARGIN_S = 5.0
"""What Serve may take beyond the gateways' own time to end them (seconds)."""


class BootError(RuntimeError):
    """The cell did not come up; the message says which part and why."""


class Boot:
    """One cell's way up and down. Ray must run already and be connected (`private_ray`, `join.py`).

    `url`: where the gateway of a cell on this machine answers; None: the cell has several nodes, and the directory
    knows where its gateways answer. `gateway_nodes`: so many nodes may have a gateway now. `estimates`: see
    `cell_apps`.
    """

    failing: tuple[FailingModel, ...] = ()
    """Models that could not be started; the cell serves the others."""
    late: Mapping[str, str] = MappingProxyType({})
    """Models whose replicas did not all come in time, and how many did."""

    def __init__(
        self,
        spec: ClusterSpec,
        region: Region,
        run_dir: RunDir,
        url: str | None,
        stop: threading.Event,
        gateway_nodes: int = 1,
        estimates: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._spec = spec
        self._region = region
        self._run_dir = run_dir
        self._url = url
        self._stop = stop
        self._estimates = estimates
        self._lines: dict[str, str] = {}
        self._apps: set[str] = set()
        self._gateways = min(spec.gateway.replicas, gateway_nodes)

    def run(self, secret: str) -> bool:
        """Deploys and waits until the gateway says that it is ready. False when `stop` was set before. Raises
        BootError, also where no model can be started; a model that cannot keeps no other one waiting."""
        from ray import serve

        self._deploy(secret)
        deadline = time.monotonic() + max(model.health.startup_s for model in self._spec.models)
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            while not self._stop.is_set():
                ours = {name: app for name, app in serve.status().applications.items() if name in self._apps}
                self._note(ours, self._starts())
                live.update(Group(*(Spinner("dots", Text.from_markup(line)) for line in self._lines.values())))
                if self._ready(secret, is_late=time.monotonic() > deadline):
                    return True
                if len(self.failing) == len(self._views):
                    raise BootError("\n".join(map(sentence_of, self.failing)))
                if time.monotonic() > deadline:
                    raise BootError("not ready in time: " + "; ".join(self._lines.values()))
                self._stop.wait(_POLL_S)
        return False

    def _deploy(self, secret: str) -> None:
        """Hands the applications to Serve. What runs already and is the same stays as it is."""
        import ray
        from ray import serve

        from deployments.app import app_name, cell_apps, our_apps
        from deployments.cell.directory import start_directory

        try:
            self._directory = start_directory(secret, self._spec.gateway.replicas, self._run_dir.path)
        except ValueError as error:
            raise BootError(str(error)) from None
        # The environment of a Ray that others have started may lack our settings of Serve.
        variables = {name: value for name, value in RAY_ENVIRONMENT.items() if name.startswith("RAY_SERVE_")}
        options = {"runtime_env": {"env_vars": variables}} if self._url is None else None
        serve.start(proxy_location="Disabled", controller_options=options)
        earlier = our_apps(serve.status())
        apps = cell_apps(self._spec, self._region, self._run_dir.path, self._url is None, self._estimates)
        self._apps = {app.name for app in apps}
        keys = {view.group_key: view.replicas.count for view in self._views}
        new = {key: count for key, count in keys.items() if app_name(key) not in earlier}
        ray.get(self._directory.asked.remote(new), timeout=_DEPLOYED_S)
        targets = [serve.RunTarget(target=app.target, name=app.name, route_prefix=None) for app in apps]
        serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
        if self._url is None:
            ray.get(self._directory.deployed.remote(self._spec.model_dump_json()), timeout=_DEPLOYED_S)
        for name in earlier - self._apps:  # a model that the spec has no more
            serve.delete(name, _blocking=False)

    def stop(self, ray_alive: Callable[[], bool]) -> None:
        """Ends the gateway, which lets running requests end for gateway.drain_s. Everything else is ended by process.

        Gives up when Ray is gone: Serve would be asked for a minute. A thread asks, since nothing stops a call that
        waits for Ray.
        """
        gateway = self._spec.gateway
        deadline = time.monotonic() + gateway.drain_s + gateway.lame_duck_s + _STOP_MARGIN_S
        asking = threading.Thread(target=self._end_the_gateways, name="stop", daemon=True)
        asking.start()
        while asking.is_alive() and ray_alive() and time.monotonic() < deadline:
            asking.join(_POLL_S)
        if asking.is_alive():
            console.print("(Serve does not answer: running requests are cut)")

    def _end_the_gateways(self) -> None:
        import ray
        from ray import serve

        from deployments.gateway.deployment import GATEWAY_APP

        with contextlib.suppress(Exception):  # any failure of Ray: then a loss more is written down
            ray.get(self._directory.closing.remote(), timeout=_ANSWER_S)
        try:
            serve.delete(GATEWAY_APP)
        except Exception as error:  # Ray may be gone already
            console.print(f"(Serve did not answer: {type(error).__name__})")

    def _starts(self) -> CellStarts:
        import ray

        try:
            return cast(CellStarts, ray.get(self._directory.starts.remote(), timeout=_ANSWER_S))
        except Exception:  # any failure of Ray: it is asked again
            return CellStarts()

    @property
    def _views(self) -> tuple[Model, ...]:
        """What has replicas of its own: each model, or each group of it."""
        return self._spec.views_in(self._region)

    def _note(self, applications: Mapping[str, Any], starts: CellStarts) -> None:
        from deployments.app import app_name

        names = {app_name(view.group_key): view.group_key for view in self._views}
        for name, app in applications.items():
            for deployment in app.deployments.values():
                states = ", ".join(
                    f"{count} {state.lower()}" for state, count in deployment.replica_states.items() if count
                )
                phases = ", ".join(sorted({start.phase for start in starts.running_of(names.get(name, ""))}))
                self._lines[name] = f"{name}: {states or 'waiting'}" + (f" ({phases})" if phases else "")
                if deployment.status == "DEPLOY_FAILED" or app.status == "DEPLOY_FAILED":
                    raise BootError(self._why(name, deployment.message or app.message))
        self.failing = tuple(one for one in starts.failing if one.failures >= GIVEN_UP_AFTER and not one.ever_ready)
        for one in starts.failing:
            self._lines[app_name(one.model)] = f"[red]{escape(sentence_of(one).splitlines()[0])}[/]"

    def _why(self, name: str, message: str) -> str:
        """The last line of what Serve says, which is the error itself; all of it goes into a file, since Ray's logs go
        with Ray."""
        log = self._run_dir.path / "logs" / "failed-start.log"
        log.write_text(message)
        lines = [line for line in message.splitlines() if line.strip()]
        return (
            f"{name} could not start: {lines[-1].strip() if lines else 'no reason given'}\n  the whole message: {log}"
        )

    def _ready(self, secret: str, is_late: bool = False) -> bool:
        """Whether every model has its replicas, but for those that cannot start; or it `is_late`, and one has."""
        url = self._url or self._gateway_of_all()
        if url is None:
            return False
        try:
            answer = get(url + "/ready", timeout_s=1)
            if not is_late and (answer.status_code != 200 or "models_without_replica" in answer.json()):
                return False
            status = get(url + STATUS_PATH, 1, secret)
            if status.status_code != 200:
                return False
            models = from_plain(status.json(), CellReport).models
        except (requests.RequestException, WireError):
            return False
        failing = {model_of(one.model) for one in self.failing}
        missing = {
            model.name: f"{len(model.replicas)} of {model.desired_replicas} replicas"
            for model in models
            if len(model.replicas) < model.desired_replicas and model.name not in failing
        }
        if is_late and any(model.replicas for model in models):
            self.late = missing
            return True
        return not missing

    def _gateway_of_all(self) -> str | None:
        """One of the gateways, once all have registered and Serve has no work left with the cell."""
        import ray
        from ray import serve

        from deployments.app import app_name
        from deployments.gateway.deployment import GATEWAY_APP

        states = serve.status().applications
        # With fewer nodes than gateways, Serve always has one to start.
        settled = self._apps if self._gateways >= self._spec.gateway.replicas else self._apps - {GATEWAY_APP}
        settled = settled - {app_name(one.model) for one in self.failing}
        if any(name not in states or states[name].status != "RUNNING" for name in settled):
            return None
        listing = ray.get(self._directory.watch.remote(-1, 0.0), timeout=_ANSWER_S)
        urls = [url for _, url in listing.gateways]
        return urls[0] if len(urls) >= self._gateways else None


def served_models(spec: ClusterSpec, failing: Collection[FailingModel]) -> list[Model]:
    """The models that a group serves."""
    keys = {one.model for one in failing}
    return [model for model in spec.models if any(view.group_key not in keys for view in model.views)]


def tell_missing(boot: Boot) -> None:
    """Prints which models are not served though the cell is ready, and why."""
    for name, count in boot.late.items():
        console.print(f"[bold red]NOT READY YET[/] {escape(name)}: {count}; `raylane status` shows what they do\n")
    for one in boot.failing:
        console.print(f"[bold red]NOT SERVED[/] {escape(sentence_of(one))}\n")


_HANDED_ON = {signal.SIGINT, signal.SIGTERM}


def hold_apart(hold: Callable[[], int]) -> int:
    """Runs `hold` in a child process and returns the exit status that it gave; negative: the signal that killed the
    child.

    `hold` gets SIGINT and SIGTERM as this process does, and SIGTERM when this process dies. The child ends with it,
    without `atexit` functions.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _be_the_child(hold, parent)
    for number in _HANDED_ON:
        signal.signal(number, _handing_on(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _be_the_child(hold: Callable[[], int], parent: int) -> None:
    status = 1
    try:
        os.setsid()
        signal_when_parent_dies(signal.SIGTERM, parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
        status = hold()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Ray's own `atexit` function would wait for a Ray that is gone.
        os._exit(status)


def _handing_on(child: int) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    return handler
