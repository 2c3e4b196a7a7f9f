"""Whether an engine compiles. It then takes no step for seconds, on a fresh machine for a minute, and is not stuck.

Two sides. In each of vLLM's processes `announce` has torch's compiler keep a file in the replica's temporary folder
while it works. In the replica, `Compilers.at_work` looks for such files, and for programs that an engine's process has
started and that are not Python (`g++`, `nvcc`, `ptxas`). It asks the kernel whether processor time goes by in them: a
compiler that hangs, or an engine that was stopped as it compiled, is stuck after all.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_PREFIX = "compiling-"


def announce() -> None:
    """Has torch's compiler tell when it works in this process. Called in each of vLLM's processes (`fate_share.py`),
    which import torch anyway."""
    from torch._dynamo.callback import callback_handler

    mark = Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getpid()}"

    # A folder that is full or gone must not fail a compilation.
    def begun(arguments: object) -> None:
        with contextlib.suppress(OSError):
            mark.touch()

    def ended(arguments: object) -> None:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)

    callback_handler.register_start_callback(begun)
    callback_handler.register_end_callback(ended)


@dataclass(eq=False)
class Compilers:
    """The compilers of an engine whose processes are `roots` and all below them; they announce themselves in
    `folder`."""

    folder: Path
    roots: Callable[[], Iterable[int]]
    _before: dict[int, float] = field(init=False, default_factory=dict)

    def at_work(self) -> bool:
        """Whether a compiler has begun, or has used processor time, since the last call."""
        before, self._before = (
            self._before,
            {process.pid: spent for process in self._compilers() if (spent := _spent_s(process)) is not None},
        )
        return any(spent > before.get(pid, -1.0) for pid, spent in self._before.items())

    def _compilers(self) -> Iterator[psutil.Process]:
        for pid in self.roots():
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(pid)
                family = [root, *root.children(recursive=True)]
                announced = any((self.folder / f"{_PREFIX}{process.pid}").exists() for process in family)
                yield from (process for process in family if announced or not _is_python(process))


def _is_python(process: psutil.Process) -> bool:
    try:
        return os.path.basename(process.exe()).startswith("python")
    except psutil.Error:
        return True


def _spent_s(process: psutil.Process) -> float | None:
    """Processor time of a process and of those of its children that have ended (seconds)."""
    try:
        return sum(process.cpu_times()[:4])
    except psutil.Error:
        return None
