"""How a command ends by a signal, and where the machine refuses: with its processes, and a line that says why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.command_lines import into_full_disk

BACKGROUND = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from cli.main import app; app()"
"""As a shell starts a job in the background: it ignores Ctrl-C."""
AT_A_TERMINAL = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); from cli.main import app; app()"
"""Also where the tests run under nohup."""
NOHUP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from cli.main import app; app()"
ENDS_S = 60.0


def with_workers(code: str, errors: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """A plan of minutes, in a session of its own, once its workers run."""
    with errors.open("wb") as output:
        command = subprocess.Popen(
            [sys.executable, "-c", code, "plan", "--workers", "2", "--thorough"],
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
    root = psutil.Process(command.pid)
    while sum(one.cpu_times().user > 1 for one in root.children()) < 2:
        assert command.poll() is None, errors.read_text()
        time.sleep(0.05)
    return command, root.children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def wait_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + ENDS_S
    while left := alive(processes):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("number", "to_all", "status"),
    [
        pytest.param(signal.SIGTERM, False, 143, marks=pytest.mark.long),
        (signal.SIGTERM, True, 143),
        pytest.param(signal.SIGHUP, False, 129, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, True, 130, marks=pytest.mark.long),
        (signal.SIGKILL, False, -9),
    ],
)
def test_whatever_ends_a_command_ends_its_workers(
    number: signal.Signals, to_all: bool, status: int, tmp_path: Path
) -> None:
    code = BACKGROUND if number == signal.SIGTERM else AT_A_TERMINAL
    command, own = with_workers(code, tmp_path / "errors")
    try:
        (os.killpg if to_all else os.kill)(command.pid, number)
        assert command.wait(ENDS_S) == status
        wait_gone(own)
    finally:
        for one in [command, *alive(own)]:
            one.kill()
        command.wait()
    assert "Traceback" not in (tmp_path / "errors").read_text()


@pytest.mark.whole
def test_a_command_outlives_its_terminal_where_it_was_told_to(tmp_path: Path) -> None:
    command, own = with_workers(NOHUP, tmp_path / "errors")
    try:
        command.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(1)
    finally:
        command.terminate()
        assert command.wait(ENDS_S) == 143
    wait_gone(own)


@pytest.mark.whole
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", [("spec", "schema"), ("key",), ("--help",)])
def test_a_full_disk_at_stdout_is_one_line(arguments: tuple[str, ...], buffered: bool) -> None:
    done = into_full_disk(arguments, PYTHONUNBUFFERED="" if buffered else "1")
    assert done.returncode == 1
    assert "error: the output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
