"""A cell of a spec that a command brings up for itself and takes down again: ports and folders of its own, every
request and step written down.

`raylane calibrate` and `raylane rehearse` measure in one. It is `raylane up` as a child process, so what is measured is
what runs.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import aiohttp
import psutil
import yaml

from cli.down import clean
from cli.private_ray import end_processes
from cli.run_dir import RunDir
from cluster.spec import ClusterSpec
from deployments.gateway.operators.report import STATUS_PATH, CellReport, ModelReport
from deployments.wire import WireError, from_plain

FOREIGN = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_START_S, _STOP_S = 240.0, 60.0
_LOG_LINES = 30


class PrivateCellError(RuntimeError):
    """The cell did not start, and the message has the end of its log; or its replicas cannot have cores of their
    own."""


class PrivateCell:
    """The cell of one model of the spec, with `replicas` of it. Use it as an async context manager. `folder` gets the
    spec and all logs."""

    def __init__(self, spec: ClusterSpec, model: str, replicas: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.trace_file = folder / "trace.jsonl"
        self.step_logs = folder / "steps"
        self.decision_logs = folder / "decisions"
        self.replicas = replicas
        if any(path.exists() for path in (self.trace_file, self.step_logs, self.decision_logs)):
            raise ValueError(
                f"{folder} holds the logs of an earlier run; allowed: a folder without them"
            )  # it would be read as this run's
        self._start_s = max(_START_S, spec.model(model).health.startup_s)
        folder.mkdir(parents=True, exist_ok=True)
        content = _private(spec, model, replicas, port, folder)
        (folder / "spec.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        self._folder = folder
        self.run_dir = RunDir(str(content["name"]), folder / "home")

    def _bring_up(self) -> "subprocess.Popen[bytes]":
        environment = {key: value for key, value in os.environ.items() if key not in FOREIGN}
        environment["RAYLANE_HOME"] = str(self.run_dir.path.parent)
        command = [sys.executable, "-m", "cli.main", "up", str(self._folder / "spec.yaml")]
        with (self._folder / "up.log").open("wb") as log:
            # A session of its own: Ctrl-C in the terminal reaches this process alone, which then ends the cell.
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def __aenter__(self) -> Self:
        self._up = self._bring_up()
        deadline = time.monotonic() + self._start_s
        try:
            while not await self._is_ready():
                status = self._up.poll()
                if status is not None or time.monotonic() > deadline:
                    why = f"not ready in {self._start_s:.0f} s" if status is None else f"ended with {status}"
                    lines = (self._folder / "up.log").read_text(errors="replace").splitlines()[-_LOG_LINES:]
                    raise PrivateCellError("\n".join([f"the cell: {why}; its log ends:", *lines]))
                await asyncio.sleep(0.2)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        processes = self._processes()
        self._up.terminate()
        await asyncio.to_thread(end_processes, processes, _STOP_S)
        self._up.wait()
        await asyncio.to_thread(clean, self.run_dir)  # Ray outlives a command that was killed

    def _processes(self) -> list[psutil.Process]:
        """The command's, and all below it; none once it has ended."""
        if self._up.poll() is not None:
            return []
        root = psutil.Process(self._up.pid)
        return [root, *root.children(recursive=True)]

    async def report(self) -> ModelReport:
        """What the gateway says of the model."""
        headers = {"authorization": f"Bearer {(self.run_dir.path / 'secret').read_text()}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(self.url + STATUS_PATH) as response,
        ):
            return from_plain(await response.json(), CellReport).models[0]

    async def settled(self) -> None:
        """Returns when nothing waits and nothing runs."""
        while True:
            model = await self.report()
            if not model.leases and not model.waiting:
                return
            await asyncio.sleep(0.1)

    async def pin(self) -> None:
        """Gives each replica a core of its own, and all else (this process, too) the rest. Raises PrivateCellError
        where there are too few."""
        cores = sorted(os.sched_getaffinity(0))
        replicas = {one.replica_id: one.pid for one in (await self.report()).replicas if one.pid is not None}
        if len(cores) <= len(replicas):
            raise PrivateCellError(
                f"{len(replicas)} replicas and {len(cores)} cores; needed: a core for each replica, and one for the "
                "rest"
            )
        own = {replica_id: cores[-1 - index] for index, replica_id in enumerate(sorted(replicas))}
        others = tuple(cores[: len(cores) - len(replicas)])
        for process in [psutil.Process(), *self._processes()]:
            _set_cores(process, others)
        for replica_id, pid in replicas.items():
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                _set_cores(process, (own[replica_id],))

    async def _is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
                session.get(self.url + "/ready?model=*") as response,
            ):
                if response.status != 200:
                    return False
            return len((await self.report()).replicas) >= self.replicas
        except (aiohttp.ClientError, TimeoutError, OSError, LookupError, WireError):
            return False


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_BESIDE = ("tenants", "peering", "external", "ladder", "autoscaling")
"""Not of what is measured, on so many replicas of one model in one region, by clients without a key."""


def _private(spec: ClusterSpec, model: str, replicas: int, port: int, folder: Path) -> dict[str, Any]:
    home = spec.regions_of(spec.model(model))[0].name
    content: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    for key in _BESIDE:
        content.pop(key, None)
    content["name"] = f"private-{port}"
    content.setdefault("gateway", {})
    content["gateway"] |= {
        "host": "127.0.0.1",
        "port": port,
        "allow_public": False,
        "trace_file": str(folder / "trace.jsonl"),
        "decision_log": str(folder / "decisions"),
        "access_log": False,
        "replicas": 1,
    }
    for key in ("tls", "cache", "cors"):
        content["gateway"].pop(key, None)
    content["regions"] = [one for one in content["regions"] if one["name"] == home]
    content["models"] = [one for one in content["models"] if one["name"] == model]
    for one in content["regions"] + content["models"] + content.get("classes", []):
        for key in ("endpoint", "deploy", "autoscaling", "fallback", "residency"):
            one.pop(key, None)
    for one in content["models"]:
        for part in (one, *one.get("groups", ())):
            if part.get("regions") is not None:
                part["regions"] = [name for name in part["regions"] if name == home]
        one["replicas"] = {"count": replicas}
        one["step_log"] = str(folder / "steps")
    return content


def _set_cores(process: psutil.Process, cores: tuple[int, ...]) -> None:
    """All threads of a process; `sched_setaffinity` of a process id is that of its first thread alone."""
    try:
        for thread in process.threads():
            try:
                os.sched_setaffinity(thread.id, cores)
            except ProcessLookupError:
                continue
    except psutil.NoSuchProcess:
        return
