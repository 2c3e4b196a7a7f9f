"""The holder: a child process of `raylane up`, in a session of its own, that has Ray and all engines below it.

Whoever stops a program may signal its whole process group (a terminal at Ctrl-C, `kill -- -PGID`, many supervisors). Ray's processes would get that
signal, too, and without them nothing can end in order: running requests break, the driver waits a minute for Ray's head and aborts. So they live in
another session, and the group has one process: the parent, which hands SIGINT and SIGTERM on. If either of the two is killed, the other cleans up.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from deployments.engine.fate_share import signal_when_parent_dies

_HANDED_ON = {signal.SIGINT, signal.SIGTERM}


def hold_apart(hold: Callable[[], int]) -> int:
    """Runs `hold` in a child process and returns the exit status that it gave; negative: the signal that killed the child.

    `hold` gets SIGINT and SIGTERM as this process does, and SIGTERM when this process dies. The child ends with it, without `atexit` functions.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _be_the_child(hold, parent)
    for number in _HANDED_ON:
        signal.signal(number, _handing_on(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _be_the_child(hold: Callable[[], int], parent: int) -> None:
    status = 1
    try:
        os.setsid()
        signal_when_parent_dies(signal.SIGTERM, parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
        status = hold()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Ray's own `atexit` function would wait for a Ray that is gone.
        os._exit(status)


def _handing_on(child: int) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    return handler
