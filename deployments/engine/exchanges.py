"""The record of a replica's HTTP exchanges: when each began, what the engine did for it, how it ended.

Pure: times come in as arguments, reports go out through `emit`, first tokens through `tell`. `guard.py` opens and
closes exchanges; `vllm_app.py` says which engine requests belong to the exchange that is being served (by a context
variable, so that no id has to be parsed and a body's own `request_id` cannot confuse us); `vllm_app.py` brings the
engine's statistics of each finished sequence; after each step of the engine, `stepped` looks which first tokens are
there.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Protocol

from deployments.protocol import Finished, FirstTokens, Usage

SETTLE_S = 0.1
"""How long an ended exchange waits for statistics that are still owed (seconds); an aborted request's never come."""

CLIENT_LEFT = 499
"""The status of an exchange that ended before any response began (nginx's number for it)."""


class VllmSequence(Protocol):
    """A sequence in the engine, as vLLM keeps it."""

    @property
    def is_prefilling(self) -> bool:
        """Whether its first token is not there yet."""


@dataclass(eq=False, slots=True)
class EngineExchange:
    """One HTTP exchange. `owed` counts sequences that the engine has accepted and not yet finished; `coming` those of
    them that it was not yet seen to have. `answered`: the first token of each sequence is there. `streams`: its answer
    does."""

    request_id: str
    started: float
    priority: int = 0
    booking: str = ""
    first_byte: float | None = None
    ended: float | None = None
    status: int = CLIENT_LEFT
    streams: bool = False
    owed: int = 0
    coming: int = 0
    prefilling: list[VllmSequence] = field(default_factory=list)
    answered: bool = False
    sequences: list[Usage] = field(default_factory=list)


current: ContextVar[EngineExchange | None] = ContextVar("raylane_exchange", default=None)
"""The exchange that the running task serves."""


class Exchanges:
    """Open exchanges, those that wait for their statistics, and which engine request belongs to which."""

    def __init__(self, emit: Callable[[Finished], None], tell: Callable[[FirstTokens], None]) -> None:
        self._emit = emit
        self._tell = tell
        self._open: set[EngineExchange] = set()
        self._prefilling: dict[EngineExchange, None] = {}
        self._settling: set[EngineExchange] = set()
        self._by_attempt_id: dict[str, EngineExchange] = {}
        self._attempt_ids: dict[EngineExchange, list[str]] = {}
        self._by_request_id: dict[str, EngineExchange] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def idle(self) -> bool:
        """Whether no exchange is open or unreported."""
        return not self._open and not self._settling

    def begin(self, request_id: str, now: float, priority: int = 0, booking: str = "") -> EngineExchange:
        exchange = EngineExchange(request_id, now, priority, booking)
        self._open.add(exchange)
        self._by_request_id[request_id] = exchange
        return exchange

    def serves(self, request_id: str) -> bool:
        """Whether an exchange with that id is open, or its work may not have ended in the engine."""
        return request_id in self._by_request_id

    @property
    def running(self) -> list[EngineExchange]:
        return sorted(self._open, key=lambda exchange: exchange.started)

    def accept(self, attempt_id: str, sequences: int) -> None:
        """Adds an engine request of `sequences` sequences to the exchange that the calling task serves, if any."""
        exchange = current.get()
        if exchange is not None:
            exchange.owed += sequences
            exchange.coming += sequences
            self._by_attempt_id[attempt_id] = exchange
            self._attempt_ids.setdefault(exchange, []).append(attempt_id)

    def retract(self, attempt_id: str, sequences: int) -> None:
        """Takes back an `accept`: the engine refused the request."""
        exchange = self._by_attempt_id.pop(attempt_id, None)
        if exchange is not None:
            exchange.owed -= sequences
            exchange.coming -= sequences

    def expect(self, count: int, sequences: Iterable[VllmSequence]) -> None:
        """The engine has `count` sequences that the calling task's exchange was booked with: these, and others that
        have ended."""
        exchange = current.get()
        if exchange is None or exchange.answered or exchange.ended is not None:
            return
        exchange.coming -= count
        exchange.prefilling += sequences
        self._prefilling[exchange] = None
        self.stepped()

    def stepped(self) -> None:
        """The engine has taken a step: tells which exchanges have got their first tokens, but for those whose first
        byte tells it."""
        if not self._prefilling:
            return
        answered = []
        for exchange in self._prefilling:
            exchange.prefilling = [sequence for sequence in exchange.prefilling if sequence.is_prefilling]
            if not exchange.prefilling and exchange.coming <= 0:
                exchange.answered = True
                answered.append(exchange)
        for exchange in answered:
            del self._prefilling[exchange]
        if whole := tuple(exchange.request_id for exchange in answered if not exchange.streams):
            self._tell(FirstTokens(whole))

    def record(self, attempt_id: str, usage: Usage) -> None:
        """Adds what a finished sequence took; an id that no exchange accepted is ignored."""
        exchange = self._by_attempt_id.get(attempt_id)
        if exchange is None:
            return
        exchange.sequences.append(usage)
        exchange.owed -= 1
        if exchange.owed == 0 and exchange in self._settling:
            self._report(exchange)

    def end(self, exchange: EngineExchange, now: float) -> bool:
        """Closes an exchange. False: statistics are owed to it, so that it is reported when they come, or at the latest
        by `settle`."""
        exchange.ended = now
        self._open.discard(exchange)
        self._prefilling.pop(exchange, None)
        exchange.prefilling.clear()
        if exchange.owed > 0:
            self._settling.add(exchange)
            return False
        self._report(exchange)
        return True

    def settle(self, exchange: EngineExchange) -> None:
        """Reports an exchange that has ended, whatever it is still owed; called SETTLE_S after its end. A reported one
        is no error."""
        if exchange in self._settling:
            self._report(exchange)

    def _report(self, exchange: EngineExchange) -> None:
        self._settling.discard(exchange)
        if self._by_request_id.get(exchange.request_id) is exchange:
            del self._by_request_id[exchange.request_id]
        for attempt_id in self._attempt_ids.pop(exchange, ()):
            if self._by_attempt_id.get(attempt_id) is exchange:
                del self._by_attempt_id[attempt_id]
        self._emit(_finished(exchange))


def _finished(exchange: EngineExchange) -> Finished:
    assert exchange.ended is not None
    sequences = exchange.sequences
    usage = replace(
        sequences[-1] if sequences else Usage(0, 0, 0, 0),
        prompt_tokens=sum(one.prompt_tokens for one in sequences),
        cached_tokens=sum(one.cached_tokens for one in sequences),
        output_tokens=sum(one.output_tokens for one in sequences),
        preemptions=sum(one.preemptions for one in sequences),
        sequences=len(sequences),
    )
    return Finished(
        exchange.request_id,
        exchange.status,
        usage,
        first_byte_s=None if exchange.first_byte is None else exchange.first_byte - exchange.started,
        wall_s=exchange.ended - exchange.started,
        booking="" if sequences else exchange.booking,
    )
