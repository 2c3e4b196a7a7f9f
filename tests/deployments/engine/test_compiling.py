"""Engines that compile, as real processes: torch's own compiler, a compiler that is a child program, one that hangs,
and none."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deployments.engine.compiling import Compilers
from tests.live.cluster import eventually

BUSY = "print(flush=True)\nwhile True: pass"
IDLE = "print(flush=True)\nimport time; time.sleep(600)"
WITH_A_CHILD = "import subprocess; subprocess.Popen(['sh', '-c', 'echo; {act}']).wait()"

Start = Callable[[str], psutil.Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an engine's process that runs a program; returns when that has begun."""
    started: list[subprocess.Popen[bytes]] = []

    def start(program: str) -> psutil.Process:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return psutil.Process(process.pid)

    yield start
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.communicate()


def spends_time(process: psutil.Process) -> None:
    """Waits until the process has used some processor time more."""
    before = sum(process.cpu_times()[:2])
    eventually(lambda: sum(process.cpu_times()[:2]) > before)


def test_an_engine_that_spins_without_a_word_does_not_compile(start: Start, tmp_path: Path) -> None:
    engine = start(BUSY)
    compilers = Compilers(tmp_path, lambda: [engine.pid])
    for _ in range(3):
        spends_time(engine)
        assert not compilers.at_work()


def test_an_engine_that_says_so_and_spends_time_compiles(start: Start, tmp_path: Path) -> None:
    engine = start(BUSY)
    compilers = Compilers(tmp_path, lambda: [engine.pid])
    (tmp_path / f"compiling-{engine.pid}").touch()
    for _ in range(3):
        spends_time(engine)
        assert compilers.at_work()
    engine.send_signal(signal.SIGSTOP)
    eventually(lambda: engine.status() == psutil.STATUS_STOPPED)
    compilers.at_work()
    assert not compilers.at_work()


@pytest.mark.parametrize(
    ("act", "at_work"), [("while :; do :; done", True), ("sleep 600", False)], ids=["busy", "hangs"]
)
def test_a_program_of_the_engine_s_is_a_compiler_while_it_spends_time(
    start: Start, tmp_path: Path, act: str, at_work: bool
) -> None:
    engine = start(WITH_A_CHILD.format(act=act))
    compilers = Compilers(tmp_path, lambda: [engine.pid])
    assert compilers.at_work()  # it has just begun
    if at_work:
        spends_time(engine.children()[0])
        assert compilers.at_work()
    else:
        # Twice: on a busy machine the shell may still be starting its program after the first.
        eventually(lambda: not compilers.at_work() and not compilers.at_work())


def test_an_idle_engine_and_one_that_is_gone_do_not_compile(start: Start, tmp_path: Path) -> None:
    engine = start(IDLE)
    assert not Compilers(tmp_path, lambda: [engine.pid]).at_work()
    engine.kill()
    engine.wait()
    assert not Compilers(tmp_path, lambda: [engine.pid]).at_work()


TORCH = """
import os, pathlib, tempfile, torch
from deployments.engine.compiling import announce

announce()
mark = pathlib.Path(tempfile.gettempdir()) / f"compiling-{os.getpid()}"

def backend(graph, inputs):
    print("in the compiler:", mark.exists(), flush=True)
    return graph.forward

compiled = torch.compile(lambda x: x + 1, backend=backend)
print("before:", mark.exists(), flush=True)
compiled(torch.ones(2))
print("after:", mark.exists(), flush=True)
"""


@pytest.mark.whole
def test_torch_tells_when_it_compiles(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", TORCH],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert result.stdout.splitlines() == ["before: False", "in the compiler: True", "after: False"]
