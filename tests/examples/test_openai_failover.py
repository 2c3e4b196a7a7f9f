"""The example of docs/clients.md, as it stands there: a client with a list of endpoints has its next answer within
seconds after a cell was killed, or has vanished."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from tests.deployments.gateway.rig import free_port
from tests.examples.askers import ALLOWED_S, EXAMPLE, close, figures, loaded, waits_after
from tests.examples.small_cell import KEY
from tests.source import ROOT

ROUNDS = 2
NETWORK = "10.78.5"


class CellProcess:
    """A small cell, which can be killed and started again at the same port. `inside`: what runs its command on another
    machine, where `host` is its address."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        self.port, self._folder = free_port(), folder
        self._host, self._inside = host, inside
        self.url = f"http://{host}:{self.port}/v1"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.examples.small_cell", str(self.port), str(self._folder), self._host]
        self.process = subprocess.Popen(
            [*self._inside, *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ,
        )
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline().strip()) != "ready":
            assert line, "the cell ended"

    def kill(self) -> float:
        """Returns when it began to (monotonic clock)."""
        begun_s = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return begun_s


class Machine:
    """A network namespace with an address of its own. After `vanish` nothing comes from it any more, not even a
    refusal."""

    address, here, name = f"{NETWORK}.2", f"{NETWORK}.1", f"raylane-client-{os.getpid()}"

    def vanish(self) -> float:
        """Returns when it began to (monotonic clock)."""
        begun_s = time.monotonic()
        ip("-n", self.name, "route", "add", "blackhole", f"{self.here}/32")
        return begun_s


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def machine() -> Iterator[Machine]:
    one, link = Machine(), f"rlc{os.getpid()}"
    ip("netns", "add", one.name)
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", one.name)
        ip("addr", "add", f"{one.here}/30", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", one.name, "addr", "add", f"{one.address}/30", "dev", "e0")
        for name in ("e0", "lo"):
            ip("-n", one.name, "link", "set", name, "up")
        yield one
    finally:
        subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
        ip("netns", "del", one.name)


@pytest.fixture
def two_cells(tmp_path: Path) -> Iterator[tuple[CellProcess, CellProcess]]:
    with ExitStack() as ends:
        cells = []
        for name in ("near", "far"):
            (tmp_path / name).mkdir()
            cells.append(CellProcess(tmp_path / name))
            ends.callback(cells[-1].kill)
        yield cells[0], cells[1]


@pytest.mark.whole
def test_the_next_answer_comes_within_seconds_after_a_cell_was_killed(
    two_cells: tuple[CellProcess, CellProcess], record_property: Callable[[str, object], None]
) -> None:
    near, far = two_cells
    waits_s = waits_after([near.url, far.url], near.kill, "demo", KEY)
    for _ in range(ROUNDS - 1):
        near.start()
        waits_s += waits_after([near.url, far.url], near.kill, "demo", KEY)
    record_property("next answer, largest in s", max(waits_s))
    print(f"a cell killed: {figures(waits_s)}")
    assert max(waits_s) < ALLOWED_S


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="root, and iproute2")
def test_the_next_answer_comes_within_seconds_after_a_machine_has_vanished(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nothing is refused and nothing is reset: connections that are open, and new ones, hear nothing."""
    with ExitStack() as ends:
        gone = ends.enter_context(machine())
        folders = [tmp_path / name for name in ("near", "far")]
        for folder in folders:
            folder.mkdir()
        near = CellProcess(folders[0], gone.address, ["ip", "netns", "exec", gone.name])
        ends.callback(near.kill)
        far = CellProcess(folders[1])
        ends.callback(far.kill)
        waits_s = waits_after([near.url, far.url], gone.vanish, "demo", KEY)
    record_property("next answer, largest in s", max(waits_s))
    print(f"a machine vanished: {figures(waits_s)}")
    assert max(waits_s) < ALLOWED_S


def test_an_endpoint_that_answers_nothing_costs_the_time_to_connect() -> None:
    """As of a region whose machines are gone: connections are not refused, they are not answered."""
    with ExitStack() as ends:
        hole = ends.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # the queue of connections is full: the kernel answers no other one
            waiting = ends.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(hole.getsockname())
        asked: list[str] = []

        def call(client: openai.OpenAI) -> str:
            asked.append(str(client.base_url))
            if len(asked) % 2:
                client.models.list()
            return "served"

        cells = loaded().Endpoints([f"http://127.0.0.1:{hole.getsockname()[1]}/v1", "http://far/v1"], api_key="none")
        begun_s = time.monotonic()
        assert cells.ask(call) == "served"
        assert 0.9 < time.monotonic() - begun_s < 2.0
        begun_s = time.monotonic()
        asked.append("")
        assert cells.ask(call) == "served"
        assert asked[-1].startswith("http://far"), "what did not answer is asked last for 30 s"
        assert time.monotonic() - begun_s < 0.5
        close(cells)


def test_a_tenants_own_limit_is_no_reason_to_ask_another_cell() -> None:
    cells = loaded().Endpoints(["http://near/v1", "http://far/v1"], api_key="none")
    asked = []

    def call(client: openai.OpenAI) -> None:
        asked.append(client.base_url)
        response = httpx.Response(429, request=httpx.Request("POST", "http://near/v1"))
        raise openai.RateLimitError("limit", response=response, body=None)

    with pytest.raises(openai.RateLimitError):
        cells.ask(call)
    assert len(asked) == 1
    close(cells)


def test_the_document_shows_the_example_as_it_is() -> None:
    text = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    example = EXAMPLE.read_text(encoding="utf-8")
    body = example[example.index("# A machine") : example.index("\n\nif __name__")].strip()
    assert body in text
