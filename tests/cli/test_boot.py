"""The holder and its parent, as real processes: signals to the group, the death of either."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

PROGRAM = """
import os, signal, sys, threading
from cli.boot import hold_apart

def hold():
    stop, got = threading.Event(), []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: (got.append(number), stop.set()))
    print(os.getpid(), os.getsid(0), flush=True)
    {act}
    stop.wait(30)
    print("held until", *got, flush=True)
    return 7

print("status", hold_apart(hold), flush=True)
"""


class Parent:
    """A process, in a group of its own, that holds something in a child."""

    def __init__(self, act: str = "pass") -> None:
        program = PROGRAM.format(act=act)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.child, self.session = map(int, self.process.stdout.readline().split())

    def rest(self) -> str:
        """What both print until both have ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read()


@pytest.fixture
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    parent.process.kill()
    parent.process.communicate()


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_reaches_the_holder_once_by_its_parent(parent: Parent, number: signal.Signals) -> None:
    assert parent.session == parent.child != parent.process.pid
    os.killpg(parent.process.pid, number)
    assert parent.rest() == f"held until {int(number)}\nstatus 7\n"
    assert parent.process.wait(10) == 0


@pytest.mark.whole
def test_a_killed_parent_ends_the_holder_in_order(parent: Parent) -> None:
    child = psutil.Process(parent.child)
    parent.process.kill()
    assert parent.rest() == f"held until {int(signal.SIGTERM)}\n"
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.whole
def test_a_killed_holder_is_told_to_the_parent(parent: Parent) -> None:
    os.kill(parent.child, signal.SIGKILL)
    assert parent.rest() == f"status {-signal.SIGKILL}\n"


@pytest.mark.whole
def test_a_holder_that_fails_says_why() -> None:
    parent = Parent(act="raise ValueError('no luck')")
    assert parent.rest() == "status 1\n"  # `communicate` would miss what `readline` read ahead
    _, errors = parent.process.communicate(timeout=30)
    assert "ValueError: no luck" in errors
