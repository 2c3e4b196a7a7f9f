"""Starts a server under test as a child process, waits until it answers, and ends it with everything that it started.

The benchmark is the "subreaper" of its descendants (Linux): a process whose parent has died becomes the benchmark's own
child, so that nothing a server leaves behind escapes. Only descendants of this process are ever signalled.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
START_PATIENCE_S = 240.0
STOP_PATIENCE_S = 60.0
_roots: set[int] = set()
"""The processes that were started here; `subprocess` buries them itself."""


class ServerError(RuntimeError):
    """A server that did not start; the message has the end of its log."""


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def heed_interrupts() -> None:
    """Ends the ignoring of SIGINT, which a shell's background job has and whatever it starts would inherit. Who starts
    servers from another thread calls this in the main thread, the only one where Python sets handlers."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class ServerProcess:
    """One server: its command, its whole environment, how to ask whether it is ready, and where its output goes."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], is_ready: Callable[[], Awaitable[bool]], log: Path
    ) -> None:
        self._command = list(command)
        self._env = dict(env)
        self._is_ready = is_ready
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.killed: list[str] = []
        """The command lines of what outlived the server and was killed at its stop."""

    async def start(self) -> float:
        """Starts the server; returns the seconds until it was ready. Raises ServerError."""
        started = time.monotonic()
        process = self._process = self._spawn()
        while not await self._is_ready():
            if process.poll() is not None:
                raise ServerError(
                    f"ended with {process.returncode} before it was ready; its log ends:\n{self._log_tail()}"
                )
            if time.monotonic() - started > START_PATIENCE_S:
                raise ServerError(f"not ready in {START_PATIENCE_S:.0f} s; its log ends:\n{self._log_tail()}")
            await asyncio.sleep(0.2)
        return time.monotonic() - started

    def tree(self) -> list[psutil.Process]:
        """The server's process and all below it."""
        if self._process is None or self._process.poll() is not None:
            return []
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    async def stop(self) -> int:
        """Ends the server by SIGINT, then by force; returns how many of its processes outlived it and were killed."""
        if self._process is None:
            return 0
        tree = self.tree()
        strangers = _descendants() - set(tree)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + STOP_PATIENCE_S
            while self._process.poll() is None and time.monotonic() < deadline:
                tree = list({*tree, *self.tree()})
                _reap_orphans()
                await asyncio.sleep(0.1)
        # Orphans: what was in the tree, and what this process has inherited since; by id, since a clock that was set
        # makes one process look like two.
        seen = {process.pid: process for process in {*tree, *(_descendants() - strangers)}}
        left = [
            process for process in seen.values() if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]
        self.killed = [shown for process in left if (shown := _kill(process))]
        await asyncio.to_thread(psutil.wait_procs, list({*tree, *left}), 10)
        self._process.poll()
        self._process = None
        return len(self.killed)

    def _spawn(self) -> subprocess.Popen[bytes]:
        """A session of its own: Ctrl-C in the terminal reaches the benchmark alone, which then stops the server in
        order."""
        heed_interrupts()
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _roots.add(process.pid)
        return process

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


def end_descendants() -> int:
    """Kills whatever is still below this process; returns how many there were. For the very end, after every server was
    stopped."""
    left = [process for process in _descendants() if process.status() != psutil.STATUS_ZOMBIE]
    for process in left:
        _kill(process)
    psutil.wait_procs(left, timeout=10)
    return len(left)


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _reap_orphans() -> None:
    """Lets dead orphans go: a server that waits for its processes to vanish would wait for zombies that only this
    process can bury."""
    for child in psutil.Process().children():
        if child.pid not in _roots and child.status() == psutil.STATUS_ZOMBIE:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def _kill(process: psutil.Process) -> str:
    """Kills a process; returns its command line, or nothing when it was gone."""
    try:
        shown = " ".join(process.cmdline()) or process.name()
        process.kill()
    except psutil.NoSuchProcess:
        return ""
    return shown
