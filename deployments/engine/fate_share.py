"""Makes vLLM's child processes die with the replica that started them, tell when they compile (`compiling.py`) and how
far their start is (`start_clock.py`), and run with this project's patches (`vllm_patches.py`).

vLLM loads `register` in each of its processes (the entry point group `vllm.general_plugins`, declared in
pyproject.toml). It acts only in a process that was started by another one of ours: where the replica has set `SWITCH`
and multiprocessing knows a parent. In the replica itself, and where somebody runs vLLM in this environment without us,
it does nothing.

The kernel's parent-death signal is what works on a child that is stopped (SIGSTOP) or stuck in a kernel of the GPU: no
code of the child has to run. It fires when the *thread* that started the child ends, so the replica must start its
engine on a thread that lives as long as the process (`vllm_app.py` does so on the event loop's thread).
"""

import ctypes
import multiprocessing
import os
import signal
import sys

SWITCH = "RAYLANE_FATE_SHARE"
"""The environment variable that turns this on; the replica's environment carries it to every child."""

_PR_SET_PDEATHSIG = 1


def register() -> None:
    """Asks the kernel to kill this process when its parent dies, and ends it at once when the parent is dead
    already."""
    parent = multiprocessing.parent_process()
    if os.environ.get(SWITCH) != "1" or parent is None or parent.pid is None:
        return
    signal_when_parent_dies(signal.SIGKILL, parent.pid)
    if "torch" in sys.modules:
        from deployments.engine.compiling import announce
        from deployments.engine.start_clock import announce_start
        from deployments.engine.vllm_patches import patch_vllm

        announce()
        announce_start()
        patch_vllm()


def signal_when_parent_dies(number: signal.Signals, parent: int) -> None:
    """Asks the kernel to send this process a signal when `parent`, the process that started it, dies; sends it at once
    when it is dead already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the call above; the kernel sends nothing for the past.
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
