"""Clients with the example of docs/clients.md, as it stands there: each asks again and again, while a cell is lost."""

import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import openai

from tests.source import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "openai_failover.py"
ALLOWED_S = 20.0
"""Until the next answer; on a quiet machine it comes within 3 s."""
_CLIENTS, _PAUSE_S = 24, 0.05

Call = Callable[[openai.OpenAI], str]


def loaded() -> Any:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("openai_failover", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def close(cells: Any) -> None:
    """The example leaves that to the end of the program."""
    for client in cells.clients:
        client.close()


class Asker(threading.Thread):
    """A client that asks again and again, and notes when each answer was whole."""

    def __init__(self, cells: Any, call: Call, over: threading.Event) -> None:
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
                self._over.wait(_PAUSE_S)
            except (openai.APIError, httpx.HTTPError):  # a stream that broke off: who has a part of it asks again
                self.broken += 1

    def end(self) -> None:
        self.join()
        close(self.cells)

    def has_answer_after(self, moment_s: float) -> bool:
        return bool(self.answered_s) and self.answered_s[-1] > moment_s

    def next_after(self, moment_s: float) -> float:
        """When its first answer after that came."""
        return next(at for at in self.answered_s if at > moment_s)


def waits_after(urls: Sequence[str], lose: Callable[[], float], model: str, key: str) -> list[float]:
    """Seconds from the loss of the first of these cells until each client has its next answer; half of them ask for
    streams. `lose` returns when it began to (monotonic clock)."""
    ask = {"model": model, "prompt": "one two three", "max_tokens": 3}

    def whole(client: openai.OpenAI) -> str:
        return str(client.completions.create(**ask).choices[0].text)

    def streamed(client: openai.OpenAI) -> str:
        return "".join(chunk.choices[0].text for chunk in client.completions.create(**ask, stream=True))

    over, module, calls = threading.Event(), loaded(), (whole, streamed)
    askers = [Asker(module.Endpoints(urls, api_key=key), calls[n % 2], over) for n in range(_CLIENTS)]
    try:
        _wait_for(lambda: all(asker.answered_s for asker in askers), 60.0)
        assert all(asker.answered_s for asker in askers), "each client was served by the first cell before"
        begun_s = lose()
        lost_s = time.monotonic()
        _wait_for(lambda: all(asker.has_answer_after(lost_s) for asker in askers), ALLOWED_S)
    finally:
        over.set()
        for asker in askers:
            asker.end()
    return [asker.next_after(lost_s) - begun_s for asker in askers]


def figures(waits_s: Sequence[float]) -> str:
    """Median and largest, in words."""
    median_s = sorted(waits_s)[len(waits_s) // 2]
    return f"next answer of {len(waits_s)} clients: median {median_s:.2f} s, largest {max(waits_s):.2f} s"


def _wait_for(condition: Callable[[], bool], within_s: float) -> None:
    end_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)
