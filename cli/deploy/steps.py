"""The steps that apply a plan to one region, in their order. Each may be done again: what is broken off is taken up by
the next deployment."""

import contextlib
import json
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import requests
import yaml

from cli.console import complain, console
from cli.deploy.changes import DeployPlan
from cli.deploy.programs import background, run, tool
from cli.deploy.record import Applied, AwsRecord, HeadRecord
from cli.deploy.rendering import SERVE_CONFIG
from cli.deploy.serve_api import DeployError, ServeApi
from cli.deploy.state import DeployState
from cluster.launch import (
    DASHBOARD_PORT,
    KEPT_APPLICATIONS,
    RAY_YAML,
    SECRET_FILE,
    SECRETS,
    STOP_HEAD_SCRIPT,
    STOP_SCRIPT,
    TOKEN_FILE,
    WHOSE_RAY,
    cell_folder,
    expected_workers,
)
from cluster.secrets import SecretsFolder, SecretStore, copy_shared_secrets, kept
from cluster.spec import AwsDeploy, ClusterSpec, LocalDeploy, Region
from cluster.urls import http_url
from deployments.gateway.operators.report import STATUS_PATH, CellReport
from deployments.wire import from_plain

T = TypeVar("T")
_TUNNEL_S = 30.0
_STATUS_S = 3.0
_WORKERS_S = 300.0
"""How long a deployment waits for the workers of a new cluster; it goes on without those that are still missing
(seconds)."""
_POLL_S = 1.0
_WORDS_CHARS = 500
_UP_LOG = "ray-up.log"
"""In the cell's state folder: Ray's launcher prints some hundred lines, and hints that do not fit here."""
_AT_ONCE = 16
"""Machines that are stopped at once."""
_GONE_S = 60.0
"""How long Serve may take to end applications that have drained (seconds)."""


class Hosts:
    """A region on machines that are reached by SSH: `ray up`, then Serve's REST API on the head's loopback address."""

    def __init__(
        self,
        spec: ClusterSpec,
        region: Region,
        deploy: LocalDeploy | AwsDeploy,
        state: DeployState,
        store: SecretStore,
        record: HeadRecord | AwsRecord,
    ) -> None:
        self._spec = spec
        self._region = region
        self._cell = spec.cell_name(region)
        self._deploy = deploy
        self._state = state
        self._store = store
        self.record = record
        self._token = ""

    def is_up(self) -> bool:
        """Whether the head answers, and has the applications. Raises DeployError, SecretsUnavailable."""
        found = self._asked(ServeApi.names)
        return found is not None and found >= {str(one["name"]) for one in self._applications()}

    def _asked(self, ask: Callable[[ServeApi], T]) -> T | None:
        """What the cell that was applied last answers; None: nothing. Raises DeployError, SecretsUnavailable."""
        self._take_secrets()
        self._state.write_files(self.record.read().files)
        known = self._store.read()
        if known is None:
            return None
        self._token = known.ray_token
        try:
            with self._api() as api:
                return ask(api)
        except DeployError:
            return None

    def outlook(self, plan: DeployPlan) -> list[str]:
        """What the change does to the replicas that run; nothing where no cell answers. Raises DeployError,
        SecretsUnavailable."""
        from cli.deploy.outlook import RunningCell, outlook  # imports Ray, which takes seconds

        found = self._asked(lambda api: (api.applications(), api.nodes())) if plan.applications else None
        if found is None:
            return []
        return list(
            outlook(self._spec, self._region, plan.rendering.applications, RunningCell(*found, self._start_s()))
        )

    def shared_secrets(self) -> dict[str, tuple[str, ...]]:
        """Those that all cells share, as the nodes get them, by file. Raises DeployError, SecretsUnavailable."""
        if not isinstance(self._store, SecretsFolder):
            return {}
        self._take_secrets()
        return {name: (text,) for name, text in copy_shared_secrets(self._spec, self._store.folder).items()}

    def _start_s(self) -> dict[str, float]:
        """How long the starts of each model's replicas took (seconds), as a gateway that is reached from here says."""
        secrets, deploy = self._store.read(), self._deploy
        if secrets is None or not isinstance(deploy, LocalDeploy):
            return {}
        for worker in deploy.workers:
            with contextlib.suppress(requests.RequestException, ValueError):
                url = http_url(str(worker.address), self._spec.gateway.port) + STATUS_PATH
                headers = {"authorization": f"Bearer {secrets.secret}"}
                report = from_plain(requests.get(url, headers=headers, timeout=_STATUS_S).json(), CellReport)
                took = {
                    model.name: [one.start.wall_s for one in model.replicas if one.start is not None]
                    for model in report.models
                }
                return {name: statistics.median(times) for name, times in took.items() if times}
        return {}

    def apply(self, plan: DeployPlan) -> None:
        """Raises DeployError, SecretsUnavailable."""
        state, applied = self._state, self.record.read()
        self._take_secrets()
        state.write_files(plan.rendering.files)
        known = self._store.read()
        self._token = "" if known is None else known.ray_token
        digest = plan.rendering.cluster_digest
        answers = self._head_answers()
        if not answers and applied.cluster == digest and self._head_runs():
            raise DeployError(
                f"Ray runs on the head of {self._cell!r}, but its REST API does not answer; nothing was changed"
            )
        if answers and applied == Applied():
            raise DeployError(
                f"a cell {self._cell!r} answers, and nothing says what was deployed there; nothing was changed. "
                "Allowed: another name, or `--down` first"
            )
        # From here on nobody knows what runs, until all of it is done.
        estimates = dict(plan.rendering.estimates)
        began = applied.model_copy(update={"applications": None, "keys": None, "estimates": estimates})
        self.record.write(began)
        self._token = kept(self._store, {tenant.name: tenant.keys for tenant in self._spec.tenants}).ray_token
        starts = applied.cluster != digest or not answers
        if starts:
            if applied.files:
                self._forget_applications()
            log = state.folder / _UP_LOG
            if isinstance(self._deploy, LocalDeploy):
                self._check_hosts(self._deploy)
            console.print(
                f"starting the Ray cluster {self._cell!r} (ray up; its output is in {log}) ...", soft_wrap=True
            )
            # With the files: whoever comes next sees that the cell has begun.
            self.record.write(
                began.model_copy(update={"cluster": None, "files": applied.files or plan.rendering.files})
            )
            run([*self._launcher(), "up", "-y", "--no-config-cache", RAY_YAML], state.files, log)
            if isinstance(self._deploy, LocalDeploy):
                self._stop_removed(self._deploy, applied)
        elif plan.secrets:
            self._send_secrets()
        # The files are those of the step that has been done; the spec is that of a deployment that has ended.
        self.record.write(began.model_copy(update={"cluster": digest, "files": dict(plan.rendering.cluster)}))
        with self._api() as api:
            if starts or not api.names():  # a head that has lost its state starts the workers again, too
                self._await_workers(api)
            changes = bool(api.names())
            api.put(plan.rendering.applications)
            # Old replicas finish their requests before the next new one starts.
            patience_s = self._patience_s + changes * self._spec.gateway.timeouts.total_s
            api.wait_running({str(one["name"]) for one in self._applications()}, patience_s)
        self._keep_applications()
        self.record.write(finished(plan, applied))

    def down(self, applied: Applied) -> None:
        """Ends the cell: running requests may finish, then Ray ends on every machine, and the secrets there go. Those
        of this machine stay. A head that does not answer ends no longer. Raises DeployError, SecretsUnavailable."""
        if applied.files:
            self._take_secrets()
            self._state.write_files(applied.files)
        known = self._store.read()
        if known is not None:
            self._token = known.ray_token
            with contextlib.suppress(DeployError), self._api() as api:  # where nothing answers, nothing is to finish
                api.put({"proxy_location": "Disabled", "applications": []})
                api.wait_gone(self._spec.gateway.drain_s + _GONE_S)
        if isinstance(self._deploy, LocalDeploy):
            self._stop_machines(self._deploy, applied)
        elif self._deploy.head_group is not None:
            self._on_head(_stop_command(self._cell, STOP_HEAD_SCRIPT))  # first: it would start workers again
            run([tool("ray"), "down", "-y", "--workers-only", RAY_YAML], self._state.files)
        else:
            run([tool("ray"), "down", "-y", RAY_YAML], self._state.files)
        with contextlib.suppress(DeployError):  # a machine that is gone has none
            self.record.write(Applied())

    def _stop_machines(self, deploy: LocalDeploy, applied: Applied) -> None:
        # The head first: it would start workers again.
        problems = self._stop(deploy, [str(deploy.head)], STOP_HEAD_SCRIPT)
        problems += self._stop(deploy, [str(worker.address) for worker in deploy.workers], STOP_SCRIPT)
        self._stop_removed(deploy, applied)
        if problems:
            raise DeployError("Ray may still run on " + "; ".join(problems))

    def _stop_removed(self, deploy: LocalDeploy, applied: Applied) -> None:
        """Workers that the spec no longer has, which Ray's launcher forgets. One that is not reached may be gone."""
        before = yaml.safe_load(applied.files.get(RAY_YAML, "{}")).get("provider", {}).get("worker_ips", ())
        for problem in self._stop(deploy, sorted({*before} - {*map(str, deploy.addresses)}), STOP_SCRIPT):
            complain(f"a worker is not stopped: it has left the spec, and Ray may still run on {problem}")

    def _stop(self, deploy: LocalDeploy, addresses: Sequence[str], script: str) -> list[str]:
        """Returns the machines where it failed, and why."""

        def stop(address: str) -> str:
            done = self._ssh(deploy, address, _stop_command(self._cell, script))
            said = " ".join((done.stderr or done.stdout).split())[-_WORDS_CHARS:]
            return f"{address}: {said}" if done.returncode else ""

        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            return [problem for problem in pool.map(stop, addresses) if problem]

    def _take_secrets(self) -> None:
        """Those of the cell, which another machine may have made. Raises DeployError, SecretsUnavailable."""
        if not isinstance(self.record, HeadRecord) or not isinstance(self._store, SecretsFolder):
            return
        theirs, own = self.record.secrets(), self._store.read()
        if TOKEN_FILE not in theirs:
            return
        if own is None:
            self._store.take(theirs)
        elif [own.secret, own.ray_token] != [theirs.get(name, "").strip() for name in (SECRET_FILE, TOKEN_FILE)]:
            raise DeployError(
                f"{self._store.folder}: not the secrets of the cell {self._cell!r}; nothing was changed. Allowed: the "
                "cell's own, which a folder without secrets gets"
            )

    def _head_runs(self) -> bool:
        """Whether Ray of this cell runs on the head. Raises DeployError where the head does not say."""
        if isinstance(self._deploy, AwsDeploy):
            try:
                run([tool("ray"), "get-head-ip", RAY_YAML], self._state.files, self._state.folder / _UP_LOG)
            except DeployError as error:
                if "not found" in str(error):
                    return False
                raise
        self._on_head("true")
        try:
            self._on_head(f"({WHOSE_RAY}) | grep -q /{cell_folder(self._cell)}/")
        except DeployError:
            return False
        return True

    def _launcher(self) -> list[str]:
        """Ray's launcher, which starts a head, or sets up the one that an Auto Scaling group keeps."""
        if isinstance(self._deploy, AwsDeploy) and self._deploy.head_group is not None:
            return [tool("python"), "-m", "cli.deploy.kept_head"]
        return [tool("ray")]

    def _check_hosts(self, deploy: LocalDeploy) -> None:
        """Raises DeployError where another cell's Ray runs on one of the hosts: to start this one ends it. A host that
        is not reached is the launcher's to name."""
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            answers = pool.map(lambda host: self._ssh(deploy, host, WHOSE_RAY).stdout, deploy.addresses)
        own = f"/{cell_folder(self._cell)}/{SECRETS}/{TOKEN_FILE}"
        for host, answer in zip(deploy.addresses, answers, strict=True):
            if others := [line for line in answer.splitlines() if not line.endswith(own)]:
                raise DeployError(
                    f"host {host}: another Ray runs there (its token: {others[0]}); allowed: one cell on a host. End "
                    "that one first (`raylane deploy ITS-SPEC --down`), or name another host"
                )

    def _ssh(self, deploy: LocalDeploy, address: object, command: str) -> subprocess.CompletedProcess[str]:
        arguments = [*login(deploy, address), command]
        return subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def _applications(self) -> Sequence[Mapping[str, Any]]:
        content = json.loads((self._state.files / SERVE_CONFIG).read_text(encoding="utf-8"))
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

    def _await_workers(self, api: ServeApi) -> None:
        """Serve would put all replicas on the workers that are there first."""
        deadline, shown, deploy = time.monotonic() + _WORKERS_S, -1, self._deploy
        if isinstance(deploy, LocalDeploy):
            named = {str(worker.address) for worker in deploy.workers}
        else:
            named = set()
        count = expected_workers(self._region, deploy)
        while len(there := api.workers()) < count:
            if len(there) != shown:
                console.print(f"  workers: {len(there)} of {count}")
                shown = len(there)
            if time.monotonic() > deadline:
                which = ", ".join(sorted(named - there)) or f"{count - len(there)} of {count}"
                complain(
                    f"workers have not joined after {_WORKERS_S:.0f} s: {which}; going on without them",
                    hint="on the head: tail /tmp/ray/session_latest/logs/monitor.*",
                )
                return
            time.sleep(_POLL_S)

    def _send_secrets(self) -> None:
        """To the nodes that run: Ray's launcher would restart them."""
        if self._deploy.secrets.kind != "file":
            return  # the gateways fetch them
        source = f"{Path(self._deploy.secrets.folder or SECRETS).expanduser()}/"
        target = f"~/{cell_folder(self._cell)}/secrets/"
        if isinstance(self._deploy, LocalDeploy):
            for address in self._deploy.addresses:
                self._copy(source, f"{self._deploy.ssh_user}@{address}:{target}")
        else:
            run([tool("ray"), "rsync-up", "-A", RAY_YAML, source, target], self._state.files)

    def _keep_applications(self) -> None:
        """On the head, which hands them to Serve again when it has lost its state (`restore.py`)."""
        target = f"~/{cell_folder(self._cell)}/{KEPT_APPLICATIONS}"
        self._on_head(f"mkdir -p {target.rpartition('/')[0]}")
        if isinstance(self._deploy, LocalDeploy):
            self._copy(SERVE_CONFIG, f"{self._deploy.ssh_user}@{self._deploy.head}:{target}")
        else:
            run([tool("ray"), "rsync-up", RAY_YAML, SERVE_CONFIG, target], self._state.files)

    def _forget_applications(self) -> None:
        """A head that starts for this deployment must not get those of the one before. One that is not reached has
        none to get, or starts without this deployment."""
        with contextlib.suppress(DeployError):
            self._on_head(f"rm -f ~/{cell_folder(self._cell)}/{KEPT_APPLICATIONS}")

    def _on_head(self, command: str) -> None:
        if isinstance(self._deploy, LocalDeploy):
            prefix = login(self._deploy, self._deploy.head)
        else:
            prefix = [tool("ray"), "exec", RAY_YAML]
        run([*prefix, command], self._state.files)

    def _copy(self, source: str, target: str) -> None:
        run(["rsync", "-az", "-e", " ".join(["ssh", *ssh_options(self._deploy)]), source, target], self._state.files)

    @contextmanager
    def _api(self) -> Iterator[ServeApi]:
        """Serve's REST API, through a tunnel to the head. Raises DeployError."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if isinstance(self._deploy, LocalDeploy):
            command = ["ssh", "-N", "-L", f"127.0.0.1:{port}:127.0.0.1:{DASHBOARD_PORT}", *ssh_options(self._deploy)]
            command += ["-o", "ExitOnForwardFailure=yes", f"{self._deploy.ssh_user}@{self._deploy.head}"]
        else:
            command = [tool("ray"), "dashboard", "--port", str(port), "--remote-port", str(DASHBOARD_PORT)]
            command += ["--no-config-cache", RAY_YAML]
        if not self._state.files.is_dir():
            raise DeployError("nothing has been deployed yet")
        with background(command, self._state.files) as tunnel:
            api = ServeApi(f"http://127.0.0.1:{port}", self._token)
            deadline = time.monotonic() + _TUNNEL_S
            while not api.answers():
                if tunnel.ended() or time.monotonic() > deadline:
                    said = tunnel.said()
                    why = f"; {command[0]} says: {said}" if said else ""
                    raise DeployError(f"Serve's REST API on the head of {self._cell!r} does not answer{why}")
                time.sleep(_POLL_S / 4)
            yield api


def ssh_options(deploy: LocalDeploy | AwsDeploy) -> list[str]:
    key = [] if deploy.ssh_key is None else ["-i", str(Path(deploy.ssh_key).expanduser())]
    return [*key, "-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]


def login(deploy: LocalDeploy, address: object) -> list[str]:
    """The beginning of a command on a host."""
    return ["ssh", *ssh_options(deploy), f"{deploy.ssh_user}@{address}"]


def _stop_command(cell: str, script: str) -> str:
    folder = f"~/{cell_folder(cell)}"
    ours = " ".join(f"{folder}/{name}" for name in ("secrets", "node", "serve"))
    return f"test ! -d {folder}/node || sh {folder}/{script} && rm -rf {ours}"


def finished(plan: DeployPlan, before: Applied) -> Applied:
    """What is recorded when all of a plan has been done."""
    rendering = plan.rendering
    return Applied(
        cluster=rendering.cluster_digest,
        applications=rendering.applications_digest,
        keys=plan.keys,
        files=rendering.files,
        content=dict(rendering.content),
        before=before.before if before.content == rendering.content else before.content,
        estimates=dict(rendering.estimates),
    )
