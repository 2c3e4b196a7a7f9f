"""Measures a replica's start by phases, and tells the directory how far it is.

Two sides. In each of vLLM's processes `announce_start` has the worker write when it loads, compiles and captures
graphs into a file of the replica's temporary folder (`fate_share.py` calls it there). In the replica, `StartClock`
knows what the replica itself does, reads those files, and divides the time (`deployments/starts/phases.py`). All of
them run on one node, whose monotonic clock they share.

vLLM's own measurements come first. Compilation is what its `monitor_torch_compile` takes the time of, and it sums these
up (`compilation_time`), though not on CPUs; torch's own signals add what is compiled later, kernel by kernel. Of
loading and capturing it only logs the time: these are taken around the same calls.
"""

import contextlib
import functools
import json
import math
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cluster.fetch_progress import FetchProgress
from deployments.starts.phases import Phase, PhaseMark, Span, corrected, seconds_of, tiled
from deployments.starts.start import StartReport

_PREFIX = "start-"
_COMPILED = "compiled_s"
_TELL_EVERY_S = 2.0
"""...even when nothing is new, so that one that says nothing is known to be gone."""
_LOOK_EVERY_S = 0.25


def process_age_s() -> float:
    """How long ago this process began: by the kernel, to 10 ms; 0 where it does not say."""
    try:
        stat = Path("/proc/self/stat").read_text()
        began_s = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
    except (AttributeError, IndexError, OSError, ValueError):
        return 0.0


class StartClock:
    """Of one replica, whose process began `age_s` ago. Thread-safe: a thread reports while the event loop waits for the
    engine. `folder`: where the engine's processes write; None until there is one. `fetching`: how far the fetch of
    the files is, None while there is none."""

    def __init__(self, age_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder: Path | None = None
        self.fetching: Callable[[], FetchProgress] | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._marks = [PhaseMark(Phase.ENVIRONMENT, clock() - age_s)]
        self._spans: list[Span] = []

    def enter(self, phase: Phase) -> None:
        with self._lock:
            self._marks.append(PhaseMark(phase, max(self._marks[-1].at_s, self._clock())))

    def retract(self) -> None:
        """There was nothing to do in the phase that was entered last: its time belongs to the one before."""
        with self._lock:
            if len(self._marks) > 1:
                self._marks.pop()

    def measured(self) -> tuple[Phase, float, dict[Phase, float]]:
        """The phase in which the start is, since how many seconds, and the time in each phase until now."""
        with self._lock:
            marks, now = list(self._marks), self._clock()
        spans, compiled_s = ([], 0.0) if self.folder is None else _read(self.folder)
        tiles = tiled(marks, spans, now)
        seconds = corrected(seconds_of(tiles, now), Phase.COMPILE, compiled_s)
        return tiles[-1].phase, max(0.0, now - tiles[-1].at_s), seconds

    def report(self, replica_id: str, model: str, node_id: str) -> StartReport:
        """What to tell the directory now."""
        fetching = self.fetching
        return StartReport(replica_id, model, node_id, *self.measured(), None if fetching is None else fetching())


class StartReporter:
    """Tells of a start from a thread of its own, as long as the block runs: at each new phase, and every two
    seconds."""

    def __init__(self, report: Callable[[], StartReport], tell: Callable[[StartReport], None]) -> None:
        self._report, self._tell = report, tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raylane-start", daemon=True)

    def __enter__(self) -> "StartReporter":
        self._tell(self._report())
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(_TELL_EVERY_S)

    def _run(self) -> None:
        reported, due_s = None, time.monotonic() + _TELL_EVERY_S
        while not self._over.wait(_LOOK_EVERY_S):
            report = self._report()
            if report.phase is not reported or time.monotonic() >= due_s:
                reported, due_s = report.phase, time.monotonic() + _TELL_EVERY_S
                self._tell(report)


def _read(folder: Path) -> tuple[list[Span], float]:
    """What the engine's processes did, and how long the slowest of them says that it compiled."""
    spans: list[Span] = []
    compiled_s = 0.0
    for path in folder.glob(f"{_PREFIX}*.jsonl"):
        begun: defaultdict[Phase, list[float]] = defaultdict(list)
        """Spans that are open; one may be within another of its phase."""
        for name, at_s, begins in _lines(path):
            if name == _COMPILED:
                compiled_s = max(compiled_s, at_s)
            elif begins:
                begun[Phase(name)].append(at_s)
            elif begun[Phase(name)]:
                spans.append(Span(Phase(name), begun[Phase(name)].pop(), at_s))
        spans += [Span(phase, at_s, math.inf) for phase, times_s in begun.items() for at_s in times_s]
    return spans, compiled_s


def _lines(path: Path) -> Iterator[tuple[str, float, bool]]:
    """What was written whole: a disk that fills tears a line."""
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, TypeError):
                name, at_s, begins = json.loads(line)
                yield (name if name == _COMPILED else Phase(name)), float(at_s), bool(begins)


def _write(name: str, value: float, begins: bool) -> None:
    # A folder that is full or gone must not fail a start. The line break comes first, too, so that a line that was torn
    # takes none with it.
    with contextlib.suppress(OSError):
        path = Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getpid()}.jsonl"
        with path.open("a") as file:
            file.write("\n" + json.dumps([name, value, begins]) + "\n")


@contextlib.contextmanager
def announced(phase: Phase) -> Iterator[None]:
    """The block is a span of that phase."""
    _write(phase, time.monotonic(), True)
    try:
        yield
    finally:
        _write(phase, time.monotonic(), False)


def announce_start() -> None:
    """Has vLLM's workers in this process tell of their start. They are wrapped one by one as they are made, whatever
    their class is."""
    from torch._dynamo.callback import callback_handler
    from vllm.compilation import decorators, monitor
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    callback_handler.register_start_callback(lambda arguments: _write(Phase.COMPILE, time.monotonic(), True))
    callback_handler.register_end_callback(lambda arguments: _write(Phase.COMPILE, time.monotonic(), False))
    measured = monitor.monitor_torch_compile  # of vLLM 0.32

    @contextlib.contextmanager
    def monitor_torch_compile(*arguments: Any, **options: Any) -> Iterator[None]:
        with announced(Phase.COMPILE), measured(*arguments, **options):
            yield

    monitor.monitor_torch_compile = decorators.monitor_torch_compile = monitor_torch_compile
    whole = WorkerWrapperBase.init_device

    def init_device(self: Any) -> None:
        _announce_worker(self.worker)
        whole(self)

    WorkerWrapperBase.init_device = init_device


def _announce_worker(worker: Any) -> None:
    """The calls of an executor to its worker, in their order (vLLM's `WorkerBase`)."""
    load, profile, warm_up = worker.load_model, worker.determine_available_memory, worker.compile_or_warm_up_model

    @functools.wraps(load)
    def load_model(*arguments: Any, **options: Any) -> Any:
        with announced(Phase.LOAD):
            loaded = load(*arguments, **options)
        runner: Any = getattr(worker, "model_runner", None)
        if hasattr(runner, "capture_model"):
            runner.capture_model = _as_span(Phase.GRAPHS, runner.capture_model)
        return loaded

    def with_compilation(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*arguments: Any, **options: Any) -> Any:
            found = call(*arguments, **options)
            config = worker.vllm_config.compilation_config
            _write(_COMPILED, config.compilation_time + config.encoder_compilation_time, True)
            return found

        return counted

    worker.load_model = load_model
    worker.determine_available_memory = with_compilation(profile)
    worker.compile_or_warm_up_model = with_compilation(warm_up)


def _as_span(phase: Phase, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def spanned(*arguments: Any, **options: Any) -> Any:
        with announced(phase):
            return call(*arguments, **options)

    return spanned
