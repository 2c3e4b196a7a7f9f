"""Starting and ending a real child process with children of its own, as servers have."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.server_process import ServerError, ServerProcess, become_subreaper

# A server with a child that ignores SIGINT and, its parent gone, would live on.
STUBBORN = """
import signal, subprocess, sys, time
ignores = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE)
child.stdout.readline()
open(sys.argv[1], "w").write(str(child.pid))
try:
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(0)
"""


def server(folder: Path, code: str) -> ServerProcess:
    async def is_ready() -> bool:
        return (folder / "pid").exists() and (folder / "pid").read_text() != ""

    return ServerProcess([sys.executable, "-c", code, str(folder / "pid")], os.environ, is_ready, folder / "log")


async def test_what_a_server_leaves_behind_is_ended_and_counted(tmp_path: Path) -> None:
    become_subreaper()
    stubborn = server(tmp_path, STUBBORN)
    assert await stubborn.start() > 0
    child = int((tmp_path / "pid").read_text())
    assert child in {process.pid for process in stubborn.tree()}
    assert await stubborn.stop() == len(stubborn.killed)
    assert ["SIG_IGN" in command for command in stubborn.killed] == [True], stubborn.killed
    assert not psutil.pid_exists(child)
    assert stubborn.tree() == []


async def test_a_server_that_ends_at_its_start_shows_its_log(tmp_path: Path) -> None:
    failing = server(tmp_path, "import sys; print('no such model'); sys.exit(3)")
    with pytest.raises(ServerError, match=r"ended with 3 (.|\n)*no such model"):
        await failing.start()
    assert await failing.stop() == 0
