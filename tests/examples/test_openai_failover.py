"""The example of docs/clients.md, as it stands there: a client with a list of endpoints has its next answer within
seconds after a cell was killed."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.deployments.gateway.rig import free_port
from tests.source import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "openai_failover.py"
CLIENTS, ROUNDS, PAUSE_S = 24, 2, 0.05
ALLOWED_S = 3.0
ASK: dict[str, Any] = {"model": "demo", "prompt": "one two three", "max_tokens": 3}


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("openai_failover", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CellProcess:
    """A small cell, which can be killed and started again at the same port."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder = free_port(), folder
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.examples.small_cell", str(self.port), str(self._folder)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
        )
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline().strip()) != "ready":
            assert line, "the cell ended"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def two_cells(tmp_path: Path) -> Iterator[tuple[CellProcess, CellProcess]]:
    with ExitStack() as ends:
        cells = []
        for name in ("near", "far"):
            (tmp_path / name).mkdir()
            cells.append(CellProcess(tmp_path / name))
            ends.callback(cells[-1].kill)
        yield cells[0], cells[1]


def whole(client: openai.OpenAI) -> str:
    return str(client.completions.create(**ASK).choices[0].text)


def streamed(client: openai.OpenAI) -> str:
    return "".join(chunk.choices[0].text for chunk in client.completions.create(**ASK, stream=True))


def wait_for(condition: Callable[[], bool], within_s: float) -> None:
    end_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)


def close(cells: Any) -> None:
    """The example leaves that to the end of the program."""
    for client in cells.clients:
        client.close()


class Asker(threading.Thread):
    """A client that asks again and again, and notes when each answer was whole."""

    def __init__(self, cells: Any, call: Callable[[openai.OpenAI], str], over: threading.Event) -> None:
        super().__init__()
        self.answered_s: list[float] = []
        self.broken = 0
        self.cells, self._call, self._over = cells, call, over
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                assert self.cells.ask(self._call)
                self.answered_s.append(time.monotonic())
                self._over.wait(PAUSE_S)
            except (openai.APIError, httpx.HTTPError):  # a stream that broke off: who has a part of it asks again
                self.broken += 1

    def end(self) -> None:
        self.join()
        close(self.cells)

    def has_answer_after(self, moment_s: float) -> bool:
        return bool(self.answered_s) and self.answered_s[-1] > moment_s

    def next_after(self, moment_s: float) -> float:
        """Seconds until its first answer after that."""
        return next(at for at in self.answered_s if at > moment_s) - moment_s


def waits_after_a_kill(near: CellProcess, far: CellProcess) -> list[float]:
    """Seconds from the kill of the near cell until each client has its next answer."""
    over, module, calls = threading.Event(), loaded(), (whole, streamed)
    urls = [near.url, far.url]
    askers = [Asker(module.Endpoints(urls, api_key="none"), calls[n % 2], over) for n in range(CLIENTS)]
    wait_for(lambda: all(asker.answered_s for asker in askers), 60.0)
    assert all(asker.answered_s for asker in askers), "each client was served by the near cell before"
    begun_s = time.monotonic()
    near.kill()
    killed_s = time.monotonic()
    wait_for(lambda: all(asker.has_answer_after(killed_s) for asker in askers), 2 * ALLOWED_S)
    over.set()
    for asker in askers:
        asker.end()
    return [asker.next_after(killed_s) + killed_s - begun_s for asker in askers]


@pytest.mark.whole
def test_the_next_answer_comes_within_seconds_after_a_cell_was_killed(
    two_cells: tuple[CellProcess, CellProcess], record_property: Callable[[str, object], None]
) -> None:
    near, far = two_cells
    waits_s = waits_after_a_kill(near, far)
    for _ in range(ROUNDS - 1):
        near.start()
        waits_s += waits_after_a_kill(near, far)
    record_property("next answer, largest in s", max(waits_s))
    print(
        f"next answer after the kill: median {sorted(waits_s)[len(waits_s) // 2]:.3f} s, largest {max(waits_s):.3f} s"
    )
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
    lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) <= 16
    assert json.dumps(ALLOWED_S) in text
