"""Keeps one feed open to each engine replica of the cell, and tells the dispatchers what the replicas say
(protocol.py).

Who exists comes from the directory; who lives comes from the feed: its end is how a dead process is noticed within
milliseconds, its silence how a stopped one is.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from deployments import protocol
from deployments.cell.departure import DepartureCause
from deployments.cell.listing import Listing
from deployments.gateway.replica_loss import cause_of
from deployments.ownership.dispatcher import Dispatcher
from deployments.protocol import ReplicaFacts, ReplicaState

log = logging.getLogger("raylane.feeds")

UNRESPONSIVE_AFTER_S = 4 * protocol.HEARTBEAT_S
"""A replica that said nothing for so long gets no new work..."""
LOST_AFTER_S = 40.0
"""...and after so long it is given up: its machine may be gone without having closed a connection. Serve waits some 45
s (`health.timeout_s`)."""
RECONNECTS = 3
WATCH_S = 5.0

OnAccount = Callable[[protocol.FirstTokens | protocol.Finished], None]
"""Called with an engine's statistics of any gateway's requests."""
OnFinished = Callable[[tuple[ReplicaFacts, protocol.Finished, int]], object]
"""Called with each end of an exchange, of any gateway's requests, and the time of day (ns)."""
OnEnded = Callable[[ReplicaFacts, DepartureCause, str], None]
"""Called when a replica has ended, with the cause and, where the replica sent one, its own text."""


def _nobody(facts: ReplicaFacts, cause: DepartureCause, detail: str) -> None:
    """Nobody wants to know of the end."""


def _nothing(ended: tuple[ReplicaFacts, protocol.Finished, int]) -> None:
    """Nobody wants to know of the ends of exchanges."""


@dataclass(eq=False)
class ReplicaFeed:
    """The feed of one replica, until it is lost. `load` is what it last said of itself, `failed` why it ends by itself,
    `heard_since_s` since when nothing was missed of it (None: it says nothing now), `heard_s` such times that are
    over."""

    facts: ReplicaFacts
    dispatcher: Dispatcher
    on_account: OnAccount
    on_ended: OnEnded = _nobody
    on_finished: OnFinished = _nothing

    def __post_init__(self) -> None:
        self.load: protocol.Load | None = None
        self.failed: protocol.Failed | None = None
        self.heard_since_s: float | None = None
        self.heard_s: deque[tuple[float, float]] = deque(maxlen=1_000)
        self._state: ReplicaState | None = None
        self._said_goodbye = False
        self._was_unresponsive = False
        self._last_s = self._read_s = 0.0
        """When its last message was taken, and when something last came."""

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Follows the feed; returns when the replica is lost. A broken connection alone is no loss while connecting
        again works."""
        failures = 0
        while failures < RECONNECTS and self.failed is None:
            before_s = self._last_s
            try:
                await self._follow(session)
            except (
                Exception
            ) as error:  # whatever it is: a feed that ended unseen would leave its replica ready for ever
                self._was_unresponsive = self._was_unresponsive or isinstance(error, TimeoutError)
                log.info("feed of %s broke: %r", self.facts.replica_id, error)
            failures = failures + 1 if self._last_s == before_s else 1
            self._become(None)
            await asyncio.sleep(0.05 * failures)
        cause, detail = (
            cause_of(self.load, self.failed, self._said_goodbye, self._was_unresponsive),
            "" if self.failed is None else self.failed.detail,
        )
        tell = log.info if cause.planned else log.warning
        tell("replica %s of model %s ended: %s %s", self.facts.replica_id, self.facts.model, cause, detail)
        self.dispatcher.replica_lost(self.facts.replica_id)
        self.on_ended(self.facts, cause, detail)

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        """Reads one connection to its end. Raises TimeoutError where nothing has come for `LOST_AFTER_S`."""
        async with asyncio.timeout(
            UNRESPONSIVE_AFTER_S
        ):  # a stopped process lets the kernel connect, and answers nothing
            response = await session.get(self.facts.url + protocol.FEED_PATH)
        async with response, asyncio.timeout(None) as limit:
            response.raise_for_status()
            self._read_s = time.monotonic()
            silence = asyncio.create_task(self._watch_silence(limit))
            reader = protocol.feed_reader()
            try:
                while data := await response.content.readany():
                    self._read_s = time.monotonic()
                    for message in reader.feed(data):
                        self._last_s = self._read_s
                        self._take(message)
            finally:
                silence.cancel()
        self._said_goodbye = True

    async def _watch_silence(self, limit: asyncio.Timeout) -> None:
        """Looks now and then, so that what does come costs no timer. A silent replica is stopped, or its machine is;
        the connection may yet speak again."""
        while (silent_s := time.monotonic() - self._read_s) < LOST_AFTER_S:
            is_silent = silent_s >= UNRESPONSIVE_AFTER_S
            if is_silent:
                self._was_unresponsive = True
                self._become(None)
            await asyncio.sleep(UNRESPONSIVE_AFTER_S - (0.0 if is_silent else silent_s))
        limit.reschedule(0.0)

    def _take(self, message: protocol.Message) -> None:
        self._was_unresponsive = False
        match message:
            case protocol.Hello(state=state, version=version):
                if version != protocol.FEED_VERSION:
                    raise ValueError(f"a feed of version {version}; allowed: {protocol.FEED_VERSION}")
                self._become(state)
            case protocol.Load(state=state) as load:
                self.load = load
                self._said_goodbye = self._said_goodbye and state is not ReplicaState.READY
                self._become(state)
            case protocol.Failed() as failed:
                self.failed = failed
            case protocol.FirstTokens() as first:
                self.on_account(first)
                self.dispatcher.first_tokens(first)
            case protocol.Finished() as finished:
                self.dispatcher.finished(finished)
                self.on_account(finished)
                self.on_finished((self.facts, finished, time.time_ns()))

    def _become(self, state: ReplicaState | None) -> None:
        """Follows the replica's state; None: unresponsive. A ready replica that the owner set aside (no connection)
        comes back with its next message."""
        now = time.monotonic()
        if state is None and self.heard_since_s is not None:
            self.heard_s.append((self.heard_since_s, now))
            self.heard_since_s = None
        elif state is not None and self.heard_since_s is None:
            self.heard_since_s = now
        if state is ReplicaState.READY:
            if state is not self._state or not self.dispatcher.replicas.is_ready(self.facts.replica_id):
                self.dispatcher.replica_up(self.facts)
        elif state is not self._state:
            self.dispatcher.replica_state(self.facts.replica_id, state)
        self._state = state


@dataclass(eq=False)
class Feeds:
    """All feeds of a gateway: starts one for each replica that the directory lists."""

    dispatchers: Mapping[str, Dispatcher]
    session: aiohttp.ClientSession
    on_account: OnAccount
    on_listing: Callable[[Listing], None]
    on_ended: OnEnded = _nobody
    on_finished: OnFinished = _nothing

    def __post_init__(self) -> None:
        self.by_replica: dict[str, ReplicaFeed] = {}
        self._heard_s = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, directory: Any) -> None:
        """Watches the directory for ever. While it cannot be reached, the feeds that are open go on, and the spec stays
        in force."""
        version = -1
        while True:
            try:
                listing: Listing = await directory.watch.remote(version, WATCH_S)
                version, self._heard_s = listing.version, time.monotonic()
                self.on_listing(listing)
                for facts in listing.replicas:
                    self._open(facts)
            except Exception as error:  # any failure of Ray, or of what follows: what is known stays in force
                log.warning("no listing of the directory, or one that cannot be followed: %r", error)
                version = -1
                await asyncio.sleep(1)

    def directory_age_s(self) -> float:
        """The time since the directory last answered, which is on Ray's head."""
        return time.monotonic() - self._heard_s

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _open(self, facts: ReplicaFacts) -> None:
        dispatcher = self.dispatchers.get(facts.model)
        if facts.replica_id in self.by_replica or dispatcher is None:
            return
        feed = ReplicaFeed(facts, dispatcher, self.on_account, self.on_ended, self.on_finished)
        self.by_replica[facts.replica_id] = feed
        task = asyncio.create_task(self._run(feed), name=f"feed-{facts.replica_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, feed: ReplicaFeed) -> None:
        try:
            await feed.run(self.session)
        finally:
            self.by_replica.pop(feed.facts.replica_id, None)
