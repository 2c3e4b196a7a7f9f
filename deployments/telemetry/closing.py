"""Ledgers between the end of their answer and the engine's account of it."""

import time
from collections.abc import Callable

from deployments.protocol import Finished, FirstTokens
from deployments.telemetry.ledger import Ledger


class Closing:
    """Ledgers whose request ended and whose engine statistics may still be under way: each is handed on once, at most
    `patience_s` late."""

    def __init__(self, hand_on: Callable[[Ledger], None], patience_s: float = 1.0) -> None:
        self._hand_on = hand_on
        self._patience_s = patience_s
        self._open: dict[str, Ledger] = {}
        self._ended: dict[str, float] = {}

    def open(self, ledger: Ledger) -> None:
        """A request went to an engine under `ledger.attempt_id`."""
        self._open[ledger.attempt_id] = ledger

    def finished(self, message: Finished) -> None:
        ledger = self._open.get(message.request_id)
        if ledger is None:
            return
        ledger.finished = message
        if message.request_id in self._ended:
            self._close(message.request_id)

    def first_tokens(self, message: FirstTokens, now: float) -> None:
        for attempt_id in message.request_ids:
            ledger = self._open.get(attempt_id)
            if ledger is not None and ledger.first_token_s is None:
                ledger.first_token_s = now

    def forget(self, ledger: Ledger) -> None:
        """The engine refused the request: nothing comes under that id."""
        self._open.pop(ledger.attempt_id, None)

    def ended(self, ledger: Ledger) -> None:
        """The request's answer ended. Handed on at once if nothing more is to come."""
        if ledger.attempt_id not in self._open:
            self._hand_on(ledger)
        elif ledger.finished is not None:
            self._close(ledger.attempt_id)
        else:
            self._ended[ledger.attempt_id] = time.monotonic()

    def sweep(self, now: float) -> None:
        """Hands on those that have waited long enough. Called a few times a second."""
        for attempt_id in [key for key, ended in self._ended.items() if now - ended > self._patience_s]:
            self._close(attempt_id)

    def flush(self) -> None:
        """Hands on all that ended, without their statistics: the gateway stops."""
        for attempt_id in list(self._ended):
            self._close(attempt_id)

    def __len__(self) -> int:
        return len(self._open)

    def _close(self, attempt_id: str) -> None:
        self._ended.pop(attempt_id, None)
        self._hand_on(self._open.pop(attempt_id))
