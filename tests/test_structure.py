"""How many files of the project a reader opens to follow one request or one scaling decision, and how large files and
functions are. The lists are printed: `pytest -s tests/test_structure.py`."""

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.autoscaling.serve.scaling_harness import ScalingHarness
from tests.deployments.gateway.conftest import make_rig  # noqa: F401
from tests.deployments.gateway.rig import CHAT, Rig
from tests.source import ROOT, modules, source_of
from tests.test_layers import imported

SERVING = ("cluster", "deployments", "autoscaling", "planning")
CHAT_FILES = 40
"""To be fewer, never more. The tour states the number."""


class Entered:
    """The files of the project whose code ran, in the order in which they were first entered."""

    def __init__(self, stand_ins: tuple[str, ...]) -> None:
        self._names: dict[str, None] = {}
        self._stand_ins = stand_ins

    def __call__(self, frame: FrameType, what: str, argument: object) -> None:
        if what == "call" and (name := frame.f_code.co_filename) not in self._names and not self._elsewhere(frame):
            self._names[name] = None

    def _elsewhere(self, frame: FrameType | None) -> bool:
        """Whether a stand-in for another process called it."""
        while frame is not None and frame.f_code.co_qualname not in self._stand_ins:
            frame = frame.f_back
        return frame is not None

    def clear(self) -> None:
        self._names.clear()

    def files(self) -> list[str]:
        """Paths from the root."""
        paths = [Path(name) for name in list(self._names)]
        names = [str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT)]
        return [name for name in names if name.startswith(tuple(f"{layer}/" for layer in SERVING))]


@contextmanager
def traced(*stand_ins: str) -> Iterator[Entered]:
    """Traces this thread and those that start within, without what functions of these names call."""
    entered = Entered(stand_ins)
    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def show(title: str, lines: list[str]) -> None:
    print(f"\n{title}: {len(lines)}", *lines, sep="\n  ", file=sys.stderr)


async def test_a_streamed_chat_request_enters_few_files(
    make_rig: Callable[..., Awaitable[Rig]],  # noqa: F811
) -> None:
    with traced("FakeEngine._work", "FakeEngine._tell", "FakeEngine.say", "FakeEngine._feed") as entered:
        rig = await make_rig()
        await rig.ask(CHAT, "/v1/chat/completions")
        await rig.last()
        runs = []
        for number in range(10):
            entered.clear()
            status, body = await rig.ask({**CHAT, "stream": True}, "/v1/chat/completions")
            await rig.last(number + 2)
            assert (status, body.count(b"data: ")) == (200, 4)
            runs.append(entered.files())
    files = [file for file in runs[0] if all(file in run for run in runs)]  # without what a timer ran meanwhile
    show("Files that a streamed chat request enters", files)
    assert {"deployments/scheduling/scheduler.py", "deployments/telemetry/ledger.py"} < set(files)
    assert len(files) <= CHAT_FILES
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    assert f"enters {CHAT_FILES} files" in tour
    assert [file for file in files if f"{Path(file).name}`" not in tour] == [], "the tour names each of them"


def test_a_scaling_decision_enters_few_files(tmp_path: Path) -> None:
    with traced("Scheduler.snapshot", "OperatorOrders.orders") as entered:
        harness = ScalingHarness(tmp_path, ready=1)
        harness.turn()
        harness.cell.burst(200)
        entered.clear()
        state = harness.turn()
    assert state.requested > 1
    harness.scaling.close()
    files = entered.files()
    show("Files that a scaling decision enters", files)
    assert {"autoscaling/scaler/autoscaler.py", "autoscaling/log/writer.py"} < set(files)
    assert len(files) + 1 <= 24, "one more: `autoscaling/serve/cell.py`, which the harness replaces"


def test_no_function_is_long() -> None:
    """In lines of the body; the signature of a command lists its options, and its docstring is its help."""
    long = [
        f"{name}.{function}: {lines}"
        for name, file in modules().items()
        for function, lines in source_of(file).functions
        if lines > 60
    ]
    assert long == []


def test_few_small_files_serve_one_sibling_alone() -> None:
    """A file of under 60 lines whose one importer is in its own folder could be part of that one."""
    known = modules()
    importers: dict[str, set[str]] = {name: set() for name in known}
    for name in known:
        for other in set(imported(name, known)) - {name}:
            importers[other].add(name)
    alone = [
        f"{name} ({lines} lines) serves {next(iter(users))}"
        for name, users in importers.items()
        if known[name].name != "__init__.py"
        and (lines := len(known[name].read_text(encoding="utf-8").splitlines())) < 60
        and len(users) == 1
        and known[next(iter(users))].parent == known[name].parent
    ]
    show("Small files that serve one sibling alone", alone)
    assert len(known) > 100
    assert len(alone) <= 20
