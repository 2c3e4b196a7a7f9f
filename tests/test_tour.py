"""`docs/tour.md` names every file of the project that a streamed chat request enters. `pytest -s` prints the list."""

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.deployments.gateway.conftest import make_rig  # noqa: F401
from tests.deployments.gateway.rig import CHAT, Rig
from tests.source import ROOT

SERVING = ("cluster", "deployments", "autoscaling", "planning")
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")


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


def missing(files: list[str]) -> list[str]:
    return [file for file in files if f"{Path(file).name}`" not in TOUR]


async def test_the_tour_names_each_file_that_a_streamed_chat_request_enters(
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
    assert missing(files) == []
