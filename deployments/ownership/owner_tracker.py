"""Whom a dispatcher follows: this gateway where it owns the model, else the channel to the gateway that does; nobody in
between.

Follows what the directory says (`reported`). Safety does not rest on it: an owner shows its epoch to every replica
before it uses it, and a replica takes nothing under an earlier one.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from pathlib import Path

import aiohttp

from cluster.spec import ClusterSpec
from deployments.cell.membership import Membership
from deployments.cell.owners import Ownership
from deployments.decision_log import DecisionLog, in_file_name
from deployments.ownership.channel import NotOwner, RemoteOwner
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.takeover import Running, read_booking
from deployments.protocol import CLAIM_PATH, STALE_EPOCH_CODE, ReplicaFacts
from deployments.scheduling import Binding, SchedulingPolicy
from deployments.telemetry.line_log import LogHealth
from deployments.wire import from_plain

log = logging.getLogger("raylane.ownership")

RETRY_S = 0.05
MAX_RETRY_S = 0.5
ASK_ORPHANS_S = 2.0


@dataclass(eq=False)
class OwnerTracker:
    """Of one dispatcher. All methods run in the gateway's event loop. `peered`: the spec in force, and which of its
    regions this cell is; None: it has no peers."""

    dispatcher: Dispatcher
    gateway_id: str
    session: aiohttp.ClientSession
    membership: Membership
    settings: Callable[[], tuple[SchedulingPolicy, Binding]]
    log_folder: Path | None = None
    log_health: InitVar[LogHealth | None] = None
    peered: Callable[[], tuple[ClusterSpec, str]] | None = None

    def __post_init__(self, log_health: LogHealth | None) -> None:
        self.taken_over = 0
        """How often this gateway became the owner."""
        self.highest = 0
        """The highest epoch of the model that this gateway has heard of."""
        self._log_health = log_health or LogHealth("decisions")
        self._reported: Ownership | None = None
        self._channel: asyncio.Task[None] | None = None
        self._channels = 0
        self._claims: dict[str, asyncio.Task[None]] = {}
        self._orphans: asyncio.Task[None] | None = None
        self.dispatcher.on_ready = self._claim
        self.dispatcher.on_overtaken = self.overtaken

    @property
    def epoch(self) -> int | None:
        """The epoch under which this gateway owns the model, if it does."""
        return None if self.dispatcher.own is None else self.dispatcher.own.epoch

    @property
    def owner_url(self) -> str | None:
        """Where the model's owner listens for the cell's other processes, by the directory's last word."""
        return None if self._reported is None else self._reported.url

    def reported(self, ownership: Ownership | None) -> None:
        """The directory's word on who owns the model; an older one than before is ignored."""
        known = self._reported
        if ownership == known or ownership is None or (known is not None and ownership.epoch < known.epoch):
            return
        self._reported = ownership
        self.highest = max(self.highest, ownership.epoch)
        self._let_go()
        if ownership.gateway_id == self.gateway_id:
            self._take_over(ownership)
        else:
            self._channel = asyncio.create_task(self._follow(ownership), name=f"channel-{ownership.model}")

    def configure(self) -> None:
        """The settings changed."""
        own = self.dispatcher.own
        if own is None:
            return
        if own.peering is not None and self.peered is not None:
            own.peering.configure(self.peered()[0])
        own.configure(*self.settings())

    def overtaken(self, highest: int) -> None:
        """An engine has seen an epoch that is higher than this gateway's own: it owns nothing any more."""
        log.warning("model %s: epoch %s was overtaken by %d", self.dispatcher.model.name, self.epoch, highest)
        self.highest = max(self.highest, highest)
        self._let_go()
        self.membership.overtaken(self.dispatcher.model.name, highest)

    def close(self) -> None:
        """Ends everything that runs for the dispatcher."""
        self._let_go()

    def _let_go(self) -> None:
        self.dispatcher.follow(None)
        for task in (self._channel, self._orphans, *self._claims.values()):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._channel = self._orphans = None
        self._claims.clear()

    def _take_over(self, ownership: Ownership) -> None:
        policy, binding = self.settings()
        owner = LaneOwner(
            policy,
            binding,
            ownership.epoch,
            self.dispatcher.replicas,
            self._log(ownership),
            self.dispatcher.records,
        )
        if self.peered is not None and (peered := self.peered())[0].peering is not None:
            owner.help_peers(*peered, ownership.model)
        self.taken_over += 1
        log.info("model %s: this gateway owns it, epoch %d", ownership.model, ownership.epoch)
        self.dispatcher.follow(owner)
        for facts in self.dispatcher.replicas.ready:
            self._claim(facts)
        self._orphans = asyncio.create_task(self._ask_for_orphans(owner))

    def _log(self, ownership: Ownership) -> DecisionLog | None:
        if self.log_folder is None:
            return None
        name = f"{in_file_name(ownership.model)}-epoch-{ownership.epoch}-{self.gateway_id}"
        kin = re.escape(in_file_name(ownership.model)) + "-epoch-[0-9]+-[^-]+"
        return DecisionLog(self.log_folder, name, self._log_health, kin=kin)

    def _claim(self, facts: ReplicaFacts) -> None:
        owner = self.dispatcher.own
        if owner is None:
            return
        running = self._claims.get(facts.replica_id)
        if running is not None and not running.done():
            return
        self._claims[facts.replica_id] = asyncio.create_task(
            self._show_epoch(owner, facts), name=f"claim-{facts.replica_id}"
        )

    async def _show_epoch(self, owner: LaneOwner, facts: ReplicaFacts) -> None:
        while self.dispatcher.own is owner and self.dispatcher.replicas.is_ready(facts.replica_id):
            try:
                running = await claim(self.session, facts, owner.epoch, time.monotonic())
            except Overtaken as overtaken:
                if self.dispatcher.own is owner:
                    self.overtaken(overtaken.highest)
                return
            except ClaimFailed as error:  # the feed will say whether it is lost
                log.info("replica %s was not claimed: %s", facts.replica_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            if self.dispatcher.own is owner and self.dispatcher.replicas.is_ready(facts.replica_id):
                owner.replica_up(facts, running)
            return

    async def _ask_for_orphans(self, owner: LaneOwner) -> None:
        while True:
            await asyncio.sleep(ASK_ORPHANS_S)
            waiting_for = owner.records.replicas_of_orphans
            for facts in self.dispatcher.replicas.ready:
                if facts.replica_id in waiting_for:
                    self._claim(facts)

    async def _follow(self, ownership: Ownership) -> None:
        wait_s = RETRY_S
        while True:
            began_s = time.monotonic()
            self._channels += 1
            remote = RemoteOwner(ownership, self._channels, self.dispatcher.records, self.dispatcher)
            try:
                await remote.run(self.session, self.gateway_id, lambda remote=remote: self.dispatcher.follow(remote))  # type: ignore[misc]
                log.info("model %s: gateway %s closed the channel", ownership.model, ownership.gateway_id)
            except NotOwner:
                pass  # it does not know yet that it owns the model, or knows already that it does no more
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                log.warning(
                    "model %s: the channel to gateway %s broke: %r", ownership.model, ownership.gateway_id, error
                )
                self.membership.doubt(ownership.gateway_id)
            except Exception as error:  # a fault of this gateway's own: the next channel may do better
                log.error("model %s: the channel failed: %r", ownership.model, error, exc_info=True)
            self.dispatcher.follow(None)
            wait_s = RETRY_S if time.monotonic() - began_s > 1 else min(MAX_RETRY_S, 2 * wait_s)
            await asyncio.sleep(wait_s)


_ANSWER_S = 5.0


class Overtaken(Exception):
    """The replica has seen a later epoch."""

    def __init__(self, highest: int) -> None:
        super().__init__(highest)
        self.highest = highest


class ClaimFailed(Exception):
    """The replica did not answer, or not in the way that was agreed."""


@dataclass(frozen=True, slots=True)
class _Reported:
    """One request that a replica runs; without a booking where no lease stands for it (the tokenizer's)."""

    booking: str
    started: bool


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A replica's answer to a claim."""

    running: tuple[_Reported, ...]


async def claim(session: aiohttp.ClientSession, facts: ReplicaFacts, epoch: int, now: float) -> list[Running]:
    """What the replica runs, from the moment at which it knows the epoch. Raises Overtaken, ClaimFailed."""
    try:
        async with asyncio.timeout(_ANSWER_S), session.post(facts.url + CLAIM_PATH, json={"epoch": epoch}) as response:
            status, payload = response.status, await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ClaimFailed(repr(error)) from error
    if (highest := overtaken_by(status, payload)) is not None:
        raise Overtaken(highest)
    if status != 200:
        raise ClaimFailed(f"{status}: {payload[:200]!r}")
    try:
        reported = from_plain(json.loads(payload), _Claimed).running
        return [
            Running(read_booking(one.booking).lease(facts.replica_id, now), one.started)
            for one in reported
            if one.booking
        ]
    except ValueError as error:
        raise ClaimFailed(f"not an answer to a claim: {payload[:200]!r}: {error}") from error


def overtaken_by(status: int, payload: bytes) -> int | None:
    """The highest epoch, if an engine's answer is the refusal of one that was overtaken."""
    if status != 409:
        return None
    try:
        error = json.loads(payload)["error"]
        return int(error["highest"]) if error["code"] == STALE_EPOCH_CODE else None
    except (KeyError, TypeError, ValueError):
        return None
