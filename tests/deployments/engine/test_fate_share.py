"""Children that die with their parent, in real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.engine.fate_share import SWITCH, register

PARENT = """
import multiprocessing, os, signal, time
from deployments.engine.fate_share import register

def child():
    register()
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    register()
    multiprocessing.get_context("spawn").Process(target=child).start()
    time.sleep(600)
"""


class Family:
    """A parent process and the child that it has spawned."""

    def __init__(self, folder: Path, switch: str) -> None:
        script = folder / "parent.py"
        script.write_text(PARENT)
        env = {**os.environ, SWITCH: switch}
        self.parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=env)
        assert self.parent.stdout is not None
        self.child = int(self.parent.stdout.readline())

    def kill_parent(self) -> None:
        self.parent.kill()
        self.parent.wait()

    def child_is_gone_within(self, limit_s: float) -> bool:
        limit = time.monotonic() + limit_s
        while time.monotonic() < limit:
            if is_gone(self.child):
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        self.kill_parent()
        assert self.parent.stdout is not None
        self.parent.stdout.close()
        if not is_gone(self.child):
            os.kill(self.child, signal.SIGKILL)


@pytest.fixture
def family(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Family]:
    family = Family(tmp_path, getattr(request, "param", "1"))
    yield family
    family.close()


def test_the_child_of_a_killed_parent_dies(family: Family) -> None:
    family.kill_parent()
    assert family.child_is_gone_within(10.0)


def test_even_a_stopped_child_dies(family: Family) -> None:
    os.kill(family.child, signal.SIGSTOP)
    family.kill_parent()
    assert family.child_is_gone_within(10.0)


@pytest.mark.parametrize("family", ["0"], indirect=True)
def test_without_the_switch_nothing_is_done(family: Family) -> None:
    family.kill_parent()
    assert not family.child_is_gone_within(0.5)


def test_in_a_process_that_no_parent_of_ours_started_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    register()
    assert pdeathsig() == 0


def pdeathsig() -> int:
    """The signal that this process gets at its parent's death, 0 for none."""
    import ctypes

    value = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(2, ctypes.byref(value), 0, 0, 0) == 0
    return value.value


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "XZ"
    except (FileNotFoundError, ProcessLookupError):
        return True
