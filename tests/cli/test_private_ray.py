"""Files in /dev/shm: those that our children mapped are removed when nobody has them mapped any more, and no others."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cli.private_ray import SharedMemory, remove_shared_memory, shared_memory

KEEPER = """
import multiprocessing.shared_memory, sys, time
from multiprocessing import get_context, resource_tracker
block = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(block._name, "shared_memory")
lock = get_context("spawn").Lock()
resource_tracker.unregister(lock._semlock.name, "semaphore")
print(block._name, "/sem." + lock._semlock.name.removeprefix("/"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def keeper() -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """A child with a segment and a semaphore, which nobody removes when it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", KEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        files = [Path("/dev/shm" + name) for name in child.stdout.readline().split()]
        yield child, files
        child.kill()
    for file in files:
        file.unlink(missing_ok=True)


def test_what_a_killed_child_left_is_removed(keeper: tuple[subprocess.Popen[str], list[Path]], tmp_path: Path) -> None:
    child, files = keeper
    other = Path(f"/dev/shm/raylane-test-other-{os.getpid()}")
    other.write_text("not ours")
    with shared_memory(tmp_path / "record") as memory:
        memory.look()
        assert set((tmp_path / "record").read_text().splitlines()) >= {str(file) for file in files}
        child.kill()
        child.wait()
        assert all(file.exists() for file in files)
    assert not any(file.exists() for file in files)
    assert not (tmp_path / "record").exists()
    assert other.exists()
    other.unlink()


def test_what_is_in_use_stays(keeper: tuple[subprocess.Popen[str], list[Path]], tmp_path: Path) -> None:
    _, files = keeper
    memory = SharedMemory(tmp_path / "record")
    memory.look()
    remove_shared_memory(tmp_path / "record")
    assert all(file.exists() for file in files)


def test_nothing_seen_writes_nothing(tmp_path: Path) -> None:
    SharedMemory(tmp_path / "record").look()
    if not multiprocessing.active_children() and not psutil.Process().children():
        assert not (tmp_path / "record").exists()
    remove_shared_memory(tmp_path / "none")


def test_a_look_is_cheap(keeper: tuple[subprocess.Popen[str], list[Path]], tmp_path: Path) -> None:
    memory = SharedMemory(tmp_path / "record")
    start = time.process_time()
    for _ in range(5):
        memory.look()
    assert (time.process_time() - start) / 5 < 0.2
