"""What a gateway tells of costs: what each attempt of its requests took, which replicas it hears from, and where its
requests run now. The directory gets all of it until it has answered (`cell/cost_book.py`).

Nothing of it is on a request's path but an append of its closed ledger; the rest is done once a second.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cluster.spec import Region
from deployments.accounting.facts import FACTS, AttemptUsage, Count, ExternalUsage, Watched, ns
from deployments.accounting.tariffs import tariffs_of
from deployments.cell.departure import DepartureCause
from deployments.gateway.feeds import OnEnded, ReplicaFeed
from deployments.gateway.service import Service
from deployments.ownership.takeover import read_booking
from deployments.protocol import Finished, ReplicaFacts, Usage
from deployments.telemetry.ledger import Ledger, RequestOutcome
from deployments.telemetry.line_log import LogHealth
from deployments.telemetry.verdicts import RequestVerdict

log = logging.getLogger("raylane.cost")

TURN_S = 1.0
WATCH_TURNS = 5
"""In each so many turns it is reported who is watched."""
MAX_BYTES = 32 << 20
"""What may wait for the directory: some 150,000 requests. Beyond it the oldest facts are lost and counted, and what was
watched by then is not reported either, so that their time is unattributed."""
KEPT_S = 30.0
"""A gateway that dies is given up within so long, by all the others."""
ORPHANS_S = 5.0
"""For so long after, engines may still end what it had there."""
_SLICE, _PAUSE_S = 20, 0.002
_BATCH_BYTES = 1 << 20
_ANSWER_S = 5.0
_OWN_END = ("deadline", "total", "client_gone", "first_byte_timeout", "between_bytes_timeout", "total_timeout")
"""Errors of requests that ran until their time was up: their tenants pay for what they had."""


class CostReporter:
    """`home`: the gateway's region. `add` takes each ledger as it is closed, `finished` each end of an exchange that a
    feed tells of. `service` and `feeds` (of all replicas, by id) are set before the first turn."""

    service: Service
    feeds: Mapping[str, ReplicaFeed]

    def __init__(self, gateway_id: str, home: Region, health: LogHealth) -> None:
        self.directory: Any = None
        self._gateway_id = gateway_id
        self._closed: deque[Ledger] = deque()
        self.add = self._closed.append
        self._home = home
        self._health = health
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._since_ns = time.time_ns()
        self._finished: deque[tuple[ReplicaFacts, Finished, int]] = deque(maxlen=100_000)
        self.finished = self._finished.append
        self._unclaimed: deque[tuple[ReplicaFacts, Finished, int]] = deque(maxlen=100_000)
        self._orphans: deque[tuple[ReplicaFacts, Finished, int]] = deque(maxlen=100_000)
        self._dead: frozenset[str] = frozenset()
        self._orphaned_until_s = 0.0
        self._delivering = asyncio.Lock()

    def spent(self, usage: ExternalUsage) -> None:
        """An attempt at the external tier has ended."""
        self._add(FACTS.encode(usage))

    async def run(self, directory: Any) -> None:
        """Delivers for ever."""
        self.directory = directory
        turn = 0
        while True:
            await asyncio.sleep(TURN_S)
            turn += 1
            await self._turn(watch=turn % WATCH_TURNS == 0)

    async def close(self) -> None:
        """Delivers what there is."""
        if self.directory is not None:
            await self._turn(watch=True)

    def ended_with(self, then: OnEnded) -> OnEnded:
        """What feeds call when a replica has ended: up to now it was watched."""

        def ended(facts: ReplicaFacts, cause: DepartureCause, detail: str) -> None:
            self._watch([facts.replica_id])
            then(facts, cause, detail)

        return ended

    def died(self, gateway_ids: Iterable[str]) -> None:
        """Those gateways were given up. What engines counted of late, of any gateway's requests, is reported: of those
        that lived long enough to do it themselves, their own report counts."""
        dead = frozenset(gateway_ids)
        if dead - self._dead:
            self._orphans.extend(self._unclaimed)
            self._unclaimed.clear()
            self._orphaned_until_s = time.monotonic() + ORPHANS_S
        self._dead = dead

    async def _turn(self, watch: bool) -> None:
        async for usage in _in_slices(self._usages()):
            self._add(FACTS.encode(usage))
        if watch:
            self._watch(self.feeds)
        async with self._delivering:
            while await self._deliver():
                pass

    def _usages(self) -> Iterator[AttemptUsage]:
        """What has ended: own requests; those of other gateways that engines dropped, which may be gone; and those of
        dead ones. What engines have counted is kept for a while."""
        while self._closed:
            yield from usages_of(self._closed.popleft())
        while self._finished:
            ended = self._finished.popleft()
            if ended[1].usage.sequences:
                kept = self._orphans if time.monotonic() < self._orphaned_until_s else self._unclaimed
                kept.append(ended)
            elif (usage := self._dropped(*ended)) is not None:
                yield usage
        while self._unclaimed and self._unclaimed[0][2] < time.time_ns() - ns(KEPT_S):
            self._unclaimed.popleft()
        while self._orphans:
            facts, message, now_ns = self._orphans.popleft()
            yield _cut(facts, message, now_ns, "", message.usage)

    def _dropped(self, facts: ReplicaFacts, message: Finished, now_ns: int) -> AttemptUsage | None:
        """A request of another gateway that an engine ended without statistics."""
        try:
            booking = read_booking(message.booking)
        except ValueError:
            return None
        if booking.gateway_id == self._gateway_id:
            return None
        sequences = max(1, booking.sequences)
        return _cut(
            facts, message, now_ns, booking.tenant, Usage(booking.prompt_tokens * sequences, 0, 0, 0, sequences)
        )

    def _watch(self, replica_ids: Iterable[str]) -> None:
        """Tells who was heard, and where requests run, up to now."""
        now_ns, now = time.time_ns(), time.monotonic()
        since: dict[str, int] = {}
        for replica_id in replica_ids:
            feed = self.feeds.get(replica_id)
            while feed is not None and feed.heard_s:
                from_s, to_s = feed.heard_s.popleft()
                self._watched(now_ns - ns(now - to_s), {replica_id: now_ns - ns(now - from_s)})
            if feed is not None and feed.heard_since_s is not None:
                since[replica_id] = now_ns - ns(now - feed.heard_since_s)
        oldest: dict[str, float] = {}
        for ledger in self.service.closing.running():
            if ledger.replica_id is not None and ledger.placed_s is not None and ledger.last_byte_s is None:
                oldest[ledger.replica_id] = min(ledger.placed_s, oldest.get(ledger.replica_id, ledger.placed_s))
        held = {one: now_ns - ns(now - placed_s) for one, placed_s in oldest.items() if placed_s < now}
        self._watched(now_ns, since, held)

    def _watched(self, to_ns: int, since: Mapping[str, int], held: Mapping[str, int] | None = None) -> None:
        since = {one: max(from_ns, self._since_ns) for one, from_ns in since.items() if to_ns > self._since_ns}
        if since or held:
            self._add(FACTS.encode(Watched(to_ns, self._gateway_id, since, held or {})))

    def _add(self, line: bytes) -> None:
        self._waiting.append(line)
        self._bytes += len(line)
        lost = 0
        while self._bytes > MAX_BYTES:
            self._bytes -= len(self._waiting.popleft())
            lost += 1
        if lost:
            self._health.lost(lost, OSError("the directory has taken no facts for too long"))
            self._since_ns = time.time_ns()

    async def _deliver(self) -> bool:
        """Delivers one batch, maybe an empty one. Whether there are more."""
        batch: list[bytes] = []
        size = 0
        for line in self._waiting:
            if batch and size + len(line) > _BATCH_BYTES:
                break
            batch.append(line)
            size += len(line)
        if not batch:
            return False
        tariffs = tariffs_of(self.service.spec, self._home, time.time_ns())
        try:
            async with asyncio.timeout(_ANSWER_S):
                written = await self.directory.cost_facts.remote(batch, tariffs)
        except Exception as error:  # any failure of Ray: they are delivered again
            log.info("the directory did not take the facts of costs: %r", error)
            return False
        if not written:
            return False
        for line in batch:
            if self._waiting and self._waiting[0] is line:  # else it was given up meanwhile
                self._waiting.popleft()
                self._bytes -= len(line)
        self._health.well()
        return bool(self._waiting)


async def _in_slices(usages: Iterator[AttemptUsage]) -> AsyncIterator[AttemptUsage]:
    """A few at a time: a second's requests at once would hold up those that run."""
    for number, usage in enumerate(usages, 1):
        yield usage
        if number % _SLICE == 0:
            await asyncio.sleep(_PAUSE_S)


def _cut(facts: ReplicaFacts, message: Finished, now_ns: int, tenant: str, took: Usage) -> AttemptUsage:
    times = now_ns - ns(message.wall_s), now_ns
    tokens = took.prompt_tokens, took.cached_tokens, took.output_tokens, took.sequences
    return AttemptUsage(message.request_id, facts.replica_id, facts.model, tenant, "", *times, Count.CUT, *tokens)


def usages_of(ledger: Ledger) -> Iterator[AttemptUsage]:
    """What the attempts of a request took: those that broke with their replica, then the one that ended it."""
    yield from _broken(ledger)
    to_s = ledger.ended_s if ledger.last_byte_s is None else ledger.last_byte_s
    if ledger.replica_id is None or ledger.placed_s is None or to_s is None:
        return
    done, count = ledger.usage, _count_of(ledger)
    if count is None:
        return
    took = done if count is Count.ENGINE and done is not None else _estimate(ledger)
    times = _unix_ns(ledger, ledger.placed_s), _unix_ns(ledger, to_s)
    yield _usage(ledger, ledger.attempt_id, ledger.replica_id, times, count, took)


def _count_of(ledger: Ledger) -> Count | None:
    """Whose tokens count; None: the engine refused the request, and did nothing for it."""
    if ledger.usage is not None and ledger.usage.sequences > 0:
        return Count.ENGINE
    if ledger.outcome is RequestOutcome.REFUSED:
        return None
    if ledger.outcome is RequestOutcome.FAILED and ledger.error not in _OWN_END:
        return Count.CUT
    return Count.ESTIMATE


def _broken(ledger: Ledger) -> Iterator[AttemptUsage]:
    """Each attempt whose replica died at it, by the decisions on the request."""
    begun: tuple[float, str, int] | None = None
    took = replace(_estimate(ledger), output_tokens=0)
    for decision in ledger.decisions:
        if decision.verdict is RequestVerdict.PLACED:
            begun = decision.at_s, str(decision.facts["replica"]), int(str(decision.facts["attempt"]))
        elif decision.verdict is RequestVerdict.RESUBMITTED and begun is not None:
            from_s, replica_id, attempt = begun
            times = _unix_ns(ledger, ledger.arrived_s + from_s), _unix_ns(ledger, ledger.arrived_s + decision.at_s)
            attempt_id = f"{ledger.attempt_id.rpartition('-')[0]}-{attempt}"
            yield _usage(ledger, attempt_id, replica_id, times, Count.CUT, took)
            begun = None


def _estimate(ledger: Ledger) -> Usage:
    """What the gateway knows of tokens without the engine: the prompt as it was expected, and a token for each piece of
    a streamed answer (of one that is not streamed, none)."""
    placed = (one.facts.get("sequences") for one in ledger.decisions if "sequences" in one.facts)
    sequences = max(1, int(str(next(placed, 1))))
    output = ledger.pieces if ledger.stream and ledger.status == 200 else 0
    return Usage(ledger.expected_prompt_tokens * sequences, 0, output, 0, sequences)


def _usage(
    ledger: Ledger, attempt_id: str, replica_id: str, times: tuple[int, int], count: Count, took: Usage
) -> AttemptUsage:
    whose = (ledger.model, ledger.tenant, ledger.traffic_class)
    tokens = took.prompt_tokens, took.cached_tokens, took.output_tokens, max(1, took.sequences)
    return AttemptUsage(attempt_id, replica_id, *whose, times[0], max(times), count, *tokens, home=ledger.home)


def _unix_ns(ledger: Ledger, at_s: float) -> int:
    """A moment of the gateway's clock as a time of day."""
    return ns(ledger.arrived_unix_s + (at_s - ledger.arrived_s))
