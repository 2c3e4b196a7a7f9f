"""The hand-overs of a cell, from the offer to the end: who has each request, so that it is ended once.

    state       what it means                                         goes to
    OFFERED     sent to a peer; the request keeps its place at home   THERE: the peer took it. Gone: the peer rejected
                                                                      it, home placed it first, or the link broke
    THERE       the peer has it, and home has not                     ANSWERING: a byte came. Gone: the link broke
    ANSWERING   the client gets the peer's answer                     Gone: the end, or the link broke

A request that is gone from here is home's own affair again, or over. What was THERE does not cross a second hop: it
stays at home then (`spent`). Pure: the shell does what each `HopAct` says.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from deployments.peering.reasons import HopAct


class HopState(StrEnum):
    """See the module's docstring."""

    OFFERED = "offered"
    THERE = "there"
    ANSWERING = "answering"


@dataclass(frozen=True, slots=True)
class HandedOver:
    """One hand-over: to which peer, and its number (`KnownPeers.sent`). `expected_s`: the TTFT that the decision
    counted with, from `sent_s` on; `slo_s`: that of its class. `upload_s`: so long its body may take to get there."""

    peer: str
    number: int
    expected_s: float
    sent_s: float
    slo_s: float
    upload_s: float = 0.0
    state: HopState = HopState.OFFERED


class Hops:
    """By request id. A hand-over is named by its number, too: what comes late of an earlier one changes nothing."""

    def __init__(self) -> None:
        self._hops: dict[str, HandedOver] = {}
        self._offered_s: dict[str, dict[str, float]] = {}
        self._spent: set[str] = set()

    def __len__(self) -> int:
        return len(self._hops)

    def get(self, request_id: str) -> HandedOver | None:
        """The request's hand-over, while there is one."""
        return self._hops.get(request_id)

    def open(self) -> tuple[tuple[str, HandedOver], ...]:
        """All of them, by request id."""
        return tuple(self._hops.items())

    def tried(self, request_id: str, since_s: float = -math.inf) -> frozenset[str]:
        """The peers to which the request was offered, at `since_s` or later."""
        return frozenset(peer for peer, at_s in self._offered_s.get(request_id, {}).items() if at_s >= since_s)

    def spent(self, request_id: str) -> bool:
        """Whether the request has had its one hop."""
        return request_id in self._spent

    def offer(self, request_id: str, hop: HandedOver) -> None:
        """The request is offered to a peer. Raises ValueError for one that is offered, or was with a peer before."""
        if request_id in self._hops or request_id in self._spent:
            raise ValueError(f"request {request_id}: handed over before; allowed: one hop, and one offer at a time")
        self._hops[request_id] = hop
        self._offered_s.setdefault(request_id, {})[hop.peer] = hop.sent_s

    def taken(self, request_id: str, number: int) -> HopAct:
        """The peer took the request. Where home has it meanwhile, or the client is gone, the peer is to drop it."""
        hop = self._current(request_id, number)
        if hop is None:
            return HopAct.CANCEL_THERE
        if hop.state is not HopState.OFFERED:
            return HopAct.NOTHING
        self._move(request_id, hop, HopState.THERE)
        self._spent.add(request_id)
        return HopAct.LEAVE_LANE

    def rejected(self, request_id: str, number: int) -> HopAct:
        """The peer did not take the request, which has kept its place."""
        hop = self._current(request_id, number)
        if hop is not None and hop.state is HopState.OFFERED:
            del self._hops[request_id]
        return HopAct.NOTHING

    def first_byte(self, request_id: str, number: int) -> HopAct:
        """The client gets the first byte of the peer's answer."""
        hop = self._current(request_id, number)
        if hop is None:
            return HopAct.CANCEL_THERE
        act = self.taken(request_id, number)  # a byte is also a yes, should that have been overtaken
        self._move(request_id, hop, HopState.ANSWERING)
        return act

    def finished(self, request_id: str, number: int) -> HopAct:
        """The peer's whole answer is there."""
        if self._current(request_id, number) is None:
            return HopAct.NOTHING
        del self._hops[request_id]
        return HopAct.END

    def broke(self, request_id: str, number: int) -> HopAct:
        """The link to the peer broke, the peer failed, or it said nothing for too long."""
        hop = self._current(request_id, number)
        if hop is None:
            return HopAct.NOTHING
        del self._hops[request_id]
        if hop.state is HopState.OFFERED:
            return HopAct.CANCEL_THERE
        return HopAct.SUBMIT_AGAIN if hop.state is HopState.THERE else HopAct.END_WITH_ERROR

    def left_home(self, request_id: str) -> HopAct:
        """At home, the request was placed, or its wait ended. A peer that has been asked meanwhile is to drop it."""
        hop = self._hops.get(request_id)
        if hop is None or hop.state is not HopState.OFFERED:
            return HopAct.NOTHING
        del self._hops[request_id]
        return HopAct.CANCEL_THERE

    def forget(self, request_id: str) -> None:
        """The request is over, or nobody waits for its answer any more."""
        self._hops.pop(request_id, None)
        self._offered_s.pop(request_id, None)
        self._spent.discard(request_id)

    def _current(self, request_id: str, number: int) -> HandedOver | None:
        hop = self._hops.get(request_id)
        return hop if hop is not None and hop.number == number else None

    def _move(self, request_id: str, hop: HandedOver, state: HopState) -> None:
        self._hops[request_id] = replace(hop, state=state)
