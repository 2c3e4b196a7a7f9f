"""`raylane up` as a service is stopped: by a signal to its process group, and by one to each of its processes.

It runs the command of the shipped unit file (`infra/systemd`), and gets the signal that systemd would send.
"""

import asyncio
import configparser
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from tests.live.clients import Answer, ask, clients
from tests.live.cluster import (
    ROOT,
    LiveCluster,
    environment_in,
    eventually,
    free_port,
    listening,
    local_spec,
    shared_memory_of,
    sockets_of,
    wait_ready,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

DOWN_S = 20.0
UNIT = configparser.ConfigParser(interpolation=None, strict=False)
UNIT.read(ROOT / "infra/systemd/raylane@.service")
SERVICE = UNIT["Service"]


@contextmanager
def service(folder: Path, temp_dir: Path) -> Iterator[LiveCluster]:
    """One vLLM replica, held by the unit's command in a process group of its own; the caller ends it."""
    port = free_port()
    spec = local_spec(1, max_num_seqs=16, kv_cache_memory_bytes=64 << 20) | {"name": "service"}
    spec["gateway"] |= {"port": port, "trace_file": str(folder / "trace.jsonl")}
    (folder / "service.yaml").write_text(yaml.safe_dump(spec))
    raylane, verb, file = shlex.split(SERVICE["ExecStart"])
    assert (raylane, file) == ("/opt/raylane/.venv/bin/raylane", "/etc/raylane/%i.yaml")
    assert SERVICE["Environment"] == "RAYLANE_HOME=%S/raylane"
    environment = {**environment_in(folder), "TMPDIR": str(temp_dir)}
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", verb, str(folder / "service.yaml")],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    cluster = LiveCluster(folder, "service", port, environment, process)
    try:
        wait_ready(cluster)
        yield cluster
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)


@pytest.fixture
def temp_dir() -> Iterator[Path]:
    """The service's temporary folder, with a short path: Ray's and vLLM's sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="rl-") as name:
        yield Path(name)


def to_the_group(cluster: LiveCluster) -> None:
    os.killpg(cluster.process.pid, signal.SIGTERM)


def to_each_process(cluster: LiveCluster) -> None:
    for process in cluster.family():
        process.send_signal(signal.SIGTERM)


async def answers_during(cluster: LiveCluster, act: object) -> tuple[list[Answer], float]:
    """How eight streams of some seconds end when the service is stopped under them, and how long that takes."""
    assert callable(act)
    async with clients() as session:
        tasks = [
            asyncio.create_task(ask(session, cluster.url, max_tokens=500, prompt=f"{number}, 2, 3,"))
            for number in range(8)
        ]
        await asyncio.to_thread(eventually, lambda: cluster.model()["leases"] == 8)
        begun = time.monotonic()
        act(cluster)
        status = await asyncio.to_thread(cluster.process.wait, 120)
        took_s = time.monotonic() - begun
        assert status == 0, cluster.log.read_text()
        return list(await asyncio.gather(*tasks)), took_s


def check_nothing_is_left(
    cluster: LiveCluster, family: set[psutil.Process], shared: set[str], sockets: set[int], temp_dir: Path
) -> None:
    """But for the compiler's cache, which is meant to stay."""
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    assert not sockets & listening()
    assert not [name for name in shared if Path(name).exists()]
    assert not (cluster.run_dir / "state.json").exists()
    assert sorted(path.name for path in temp_dir.iterdir() if not path.name.startswith("torchinductor_")) == []


@pytest.mark.parametrize(
    ("signalled", "unharmed"), [(to_the_group, True), (to_each_process, False)], ids=["group", "each"]
)
async def test_sigterm_to_the_service(
    tmp_path: Path, temp_dir: Path, signalled: object, unharmed: bool, tell: list[str]
) -> None:
    """The group: as Ctrl-C, so that what runs may end. Each process, which kills Ray: streams break, and nothing else
    is different."""
    assert (SERVICE["KillMode"], SERVICE.get("KillSignal", "SIGTERM")) == ("mixed", "SIGTERM")
    assert float(SERVICE["TimeoutStopSec"]) > DOWN_S
    with service(tmp_path, temp_dir) as cluster:
        family = cluster.family()
        shared = shared_memory_of(family)
        sockets = sockets_of(family)
        answers, took_s = await answers_during(cluster, signalled)
    assert took_s < DOWN_S
    if unharmed:
        assert {answer.end for answer in answers} == {"done"}
    else:
        assert {answer.end for answer in answers} <= {"done", "error", "cut"}
    assert "is down" in cluster.log.read_text(), cluster.log.read_text()
    check_nothing_is_left(cluster, family, shared, sockets, temp_dir)
    tell.append(f"SIGTERM ({signalled.__name__}): down in {took_s:.1f} s")  # type: ignore[attr-defined]
