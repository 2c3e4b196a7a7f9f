"""A Ray of our own on this machine, started and ended by one process: loopback where Ray lets us, with token authentication, and never `ray stop`,
which would end every Ray of this machine.

The caller's environment must be set before Ray is imported, which is why Ray is imported inside the functions.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from deployments.engine.environment import INDUCTOR_CACHE, inductor_cache

_OBJECT_STORE_BYTES = 100 << 20
_END_PATIENCE_S = 10.0
_LOOK_EVERY_S = 0.2
_ORPHANS_S = 3.0
"""How long Ray's other processes may take to end when its head is gone (seconds)."""
_HEAD = ("gcs_server", "raylet")

ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    # Ray then ends the children that a killed worker leaves.
    "RAY_process_group_cleanup_enabled": "true",
    # A replica whose process hangs (SIGSTOP, a driver's fault) cannot be asked to end; without this Serve asks for minutes.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray runs its workers at niceness 15: an engine must not yield to whatever else the machine does.
    "RAY_worker_niceness": "0",
    # On a small machine Ray's housekeeping competes with the engine: ours happens half as often or less, and nothing of ours waits for it.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
    "RAY_raylet_report_resources_period_milliseconds": "500",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
    "RAY_enable_metrics_collection": "false",
}


@dataclass(frozen=True)
class PrivateRay:
    """A Ray of our own: its temporary folder, and the processes without which it does not live."""

    temp_dir: str
    head: tuple[psutil.Process, ...]

    def lives(self) -> bool:
        """Whether Ray's head can still answer."""
        return not any(_is_zombie(process) for process in self.head)


@contextmanager
def private_ray(num_cpus: int, token_file: Path) -> Iterator[PrivateRay]:
    """Starts Ray's head in this process's children. On the way out every process of it is gone, and the folder."""
    for stale in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        os.environ.pop(stale, None)
    cache = inductor_cache()
    temp_dir = tempfile.mkdtemp(prefix="raylane-")  # short, since Unix sockets lie in it
    # What the cluster's processes leave in their temporary folder goes with Ray's.
    os.environ |= ENVIRONMENT | {"RAY_AUTH_TOKEN_PATH": str(token_file), "TMPDIR": temp_dir, INDUCTOR_CACHE: cache}
    import ray

    own: PrivateRay | None = None
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=_OBJECT_STORE_BYTES,
            namespace="raylane",
            _node_ip_address="127.0.0.1",
            _temp_dir=temp_dir,
        )
        head = tuple(child for child in psutil.Process().children() if child.name() in _HEAD)
        own = PrivateRay(temp_dir, head)
        yield own
    finally:
        me = psutil.Process()
        ours = {*me.children(recursive=True), *processes_of(temp_dir)} - {me}
        if own is None or own.lives():
            ray.shutdown()
            end_processes(list(ours))
        else:  # Ray's own way out would wait for its head, and abort this process after a minute
            end_processes(list(ours), _ORPHANS_S)
        shutil.rmtree(temp_dir, ignore_errors=True)


def processes_of(temp_dir: str) -> list[psutil.Process]:
    """The processes of the Ray with that temporary folder, wherever they hang now: each has a log open in it."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(file.path.startswith(temp_dir + os.sep) for file in process.open_files()):
                found.append(process)
        except psutil.Error:  # gone, or another user's
            continue
    return found


def end_processes(processes: list[psutil.Process], patience_s: float = _END_PATIENCE_S) -> None:
    """Waits for processes that should be ending, and kills those that do not."""
    alive = _outlast(processes, patience_s)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _outlast(alive, _END_PATIENCE_S)


def _outlast(processes: list[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Those that run after so long. A zombie does not, though the init process of a container may never bury it."""
    deadline = time.monotonic() + patience_s
    while True:
        _, alive = psutil.wait_procs(processes, timeout=min(_LOOK_EVERY_S, max(0.0, deadline - time.monotonic())))
        processes = [process for process in alive if not _is_zombie(process)]
        if not processes or time.monotonic() >= deadline:
            return processes


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
