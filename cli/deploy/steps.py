"""The steps that apply a plan to one region, in their order. Each may be done again: what is broken off is taken up by
the next deployment."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from cli.console import console
from cli.deploy.changes import DeployPlan
from cli.deploy.state import Applied, DeployState
from cluster.launch import DASHBOARD_PORT, RAY_YAML, SECRETS, cell_folder
from cluster.secrets import SecretStore, kept
from cluster.spec import AwsDeploy, ClusterSpec, LocalDeploy, Region

_ANSWER_S = 30.0
_TUNNEL_S = 30.0
_POLL_S = 1.0
_APPLICATIONS = "/api/serve/applications/"


class DeployError(RuntimeError):
    """A step failed; the message says which and why. The next deployment goes on from here."""


class Hosts:
    """A region on machines that are reached by SSH: `ray up`, then Serve's REST API on the head's loopback address."""

    def __init__(
        self, spec: ClusterSpec, region: Region, deploy: LocalDeploy | AwsDeploy, state: DeployState, store: SecretStore
    ) -> None:
        self._spec = spec
        self._cell = spec.cell_name(region)
        self._deploy = deploy
        self._state = state
        self._store = store
        self._token = ""

    def is_up(self) -> bool:
        """Whether the head answers, and has the applications. Raises SecretsUnavailable."""
        known = self._store.read()
        if known is None:
            return False
        self._token = known.ray_token
        try:
            with self._api() as api:
                return api.names() >= {str(one["name"]) for one in self._applications()}
        except DeployError:
            return False

    def apply(self, plan: DeployPlan) -> None:
        """Raises DeployError, SecretsUnavailable."""
        state, applied = self._state, self._state.applied()
        # From here on nobody knows what runs, until all of it is done.
        began = applied.model_copy(update={"applications": None, "keys": None})
        state.record(began)
        state.write_files(plan.rendering.files)
        self._token = kept(self._store, {tenant.name: tenant.keys for tenant in self._spec.tenants}).ray_token
        digest = plan.rendering.cluster_digest
        if applied.cluster != digest or not self._head_answers():
            console.print(f"starting the Ray cluster {self._cell!r} (ray up) ...")
            state.record(began.model_copy(update={"cluster": None}))
            _run([_tool("ray"), "up", "-y", "--no-config-cache", RAY_YAML], state.files)
        elif plan.secrets:
            self._send_secrets()
        # The files are those of the step that has been done; the spec is that of a deployment that has ended.
        state.record(began.model_copy(update={"cluster": digest, "files": dict(plan.rendering.cluster)}))
        with self._api() as api:
            api.put(plan.rendering.applications)
            api.wait_running({str(one["name"]) for one in self._applications()}, self._patience_s)
        state.record(finished(plan))

    def _applications(self) -> Sequence[Mapping[str, Any]]:
        content = json.loads((self._state.files / "serve-config.json").read_text(encoding="utf-8"))
        found: list[Mapping[str, Any]] = content["applications"]
        return found

    @property
    def _patience_s(self) -> float:
        return max(model.health.startup_s for model in self._spec.models)

    def _head_answers(self) -> bool:
        try:
            with self._api():
                return True
        except DeployError:
            return False

    def _send_secrets(self) -> None:
        """To the nodes that run: Ray's launcher would restart them."""
        if self._deploy.secrets.kind != "file":
            return  # the gateways fetch them
        source = f"{Path(self._deploy.secrets.folder or SECRETS).expanduser()}/"
        target = f"~/{cell_folder(self._cell)}/secrets/"
        if isinstance(self._deploy, LocalDeploy):
            for address in (self._deploy.head, *(worker.address for worker in self._deploy.workers)):
                shell = " ".join(["ssh", *self._ssh_options()])
                place = f"{self._deploy.ssh_user}@{address}:{target}"
                _run(["rsync", "-az", "-e", shell, source, place], self._state.files)
        else:
            _run([_tool("ray"), "rsync-up", "-A", RAY_YAML, source, target], self._state.files)

    def _ssh_options(self) -> list[str]:
        key = [] if self._deploy.ssh_key is None else ["-i", str(Path(self._deploy.ssh_key).expanduser())]
        return [*key, "-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]

    @contextmanager
    def _api(self) -> Iterator["ServeApi"]:
        """Serve's REST API, through a tunnel to the head. Raises DeployError."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if isinstance(self._deploy, LocalDeploy):
            command = ["ssh", "-N", "-L", f"127.0.0.1:{port}:127.0.0.1:{DASHBOARD_PORT}", *self._ssh_options()]
            command += ["-o", "ExitOnForwardFailure=yes", f"{self._deploy.ssh_user}@{self._deploy.head}"]
        else:
            command = [_tool("ray"), "dashboard", "--port", str(port), "--remote-port", str(DASHBOARD_PORT)]
            command += ["--no-config-cache", RAY_YAML]
        if not self._state.files.is_dir():
            raise DeployError("nothing has been deployed yet")
        with _background(command, self._state.files) as ended:
            api = ServeApi(f"http://127.0.0.1:{port}", self._token)
            deadline = time.monotonic() + _TUNNEL_S
            while not api.answers():
                if ended() or time.monotonic() > deadline:
                    raise DeployError(f"Serve's REST API on the head of {self._cell!r} does not answer")
                time.sleep(_POLL_S / 4)
            yield api


class ServeApi:
    """Serve's REST API at a URL. Every method but `answers` raises DeployError."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.headers["authorization"] = f"Bearer {token}"

    def answers(self) -> bool:
        try:
            return self._session.get(f"{self._url}/api/version", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def names(self) -> set[str]:
        return set(self.applications())

    def applications(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET").json()["applications"]
        return found

    def put(self, config: Mapping[str, Any]) -> None:
        """Serve keeps what is as it was, and removes the applications that are not in the configuration."""
        self._ask("PUT", config)

    def wait_running(self, names: set[str], patience_s: float) -> None:
        """Until all of them run."""
        deadline, shown = time.monotonic() + patience_s, ""
        while True:
            found = self.applications()
            states = {name: str(found.get(name, {}).get("status", "missing")) for name in sorted(names)}
            if failed := [name for name, status in states.items() if status in ("DEPLOY_FAILED", "UNHEALTHY")]:
                raise DeployError(f"application {failed[0]!r} cannot run: {_why(found[failed[0]])}")
            if set(states.values()) == {"RUNNING"}:
                return
            line = ", ".join(f"{name}: {status.lower()}" for name, status in states.items())
            if line != shown:
                console.print(f"  {line}")
                shown = line
            if time.monotonic() > deadline:
                raise DeployError(f"not ready after {patience_s:.0f} s: {line}")
            time.sleep(_POLL_S)

    def _ask(self, method: str, body: Mapping[str, Any] | None = None) -> requests.Response:
        try:
            answer = self._session.request(method, self._url + _APPLICATIONS, json=body, timeout=_ANSWER_S)
        except requests.RequestException as error:
            raise DeployError(f"Serve's REST API: {error}") from error
        if answer.status_code != 200:
            raise DeployError(f"Serve's REST API answered {answer.status_code}: {answer.text[:500]}")
        return answer


def _why(application: Mapping[str, Any]) -> str:
    messages = [application["message"], *(one["message"] for one in application["deployments"].values())]
    lines = [line.strip() for message in messages for line in str(message).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def finished(plan: DeployPlan) -> Applied:
    """What is recorded when all of a plan has been done."""
    rendering = plan.rendering
    return Applied(
        cluster=rendering.cluster_digest,
        applications=rendering.applications_digest,
        keys=plan.keys,
        files=rendering.files,
        content=dict(rendering.content),
    )


def _tool(name: str) -> str:
    """A program of this virtual environment."""
    return str(Path(sys.executable).parent / name)


def _run(command: Sequence[str], folder: Path) -> None:
    """Shows what the command prints. Raises DeployError."""
    try:
        status = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        raise DeployError(f"{command[0]}: cannot be run: {error.strerror}") from error
    if status:
        raise DeployError(f"{' '.join(command[:2])} ended with status {status}; what it printed is above")


@contextmanager
def _background(command: Sequence[str], folder: Path) -> Iterator[Callable[[], bool]]:
    """Runs a command with all that it starts as long as the block; yields whether it has ended."""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise DeployError(f"{command[0]}: cannot be run: {error.strerror}") from error
    try:
        yield lambda: process.poll() is not None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
