"""Cells in virtual time that hand requests over to each other: the real dispatcher, owner and peering in each; clients,
engines, and links between the cells that are none. What happens is drawn from the world's dice, so that one seed gives
one run.

The world keeps its own account of each request (`Ask`), and asks the code under test for none of it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.spec import ClusterSpec
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.record import GuestNotTaken, QueueTimeout, Rejected
from deployments.ownership.roles import PeerLease
from deployments.ownership.takeover import Running
from deployments.peering import Digest, HopFacts, HopRefusal, LaneDigest
from deployments.protocol import Finished, ReplicaFacts, Usage
from deployments.scheduling import Ending, LanePolicy, Lease, Placement, Request, SchedulingPolicy, TenantPolicy
from tests.deployments.ownership.replayed_log import ReplayedLog
from tests.deployments.peering.setups import MODEL

POLICY = SchedulingPolicy(
    (LanePolicy("short", 300, weight=4, max_wait_s=8, cap_s=20), LanePolicy("long", cap_s=40)),
    tenants={name: TenantPolicy(requests_per_minute=1e6) for name in ("free", "local", "german")},
)
PREFILL_PER_S = 5_000.0
SEATS = 4
ROUND_TRIP_S = 0.08
SILENCE_S = 1.5
"""A connection on which something was lost is closed by the side that sent it after so long."""
BETWEEN_BYTES_S = 6.0


@dataclass(eq=False)
class Ask:
    """A client's request, and all that has happened to it."""

    request: Request
    home: str
    endings: list[str] = field(default_factory=list)
    served_by: set[str] = field(default_factory=set)
    """The cells of whose answers the client has got bytes."""
    entered: set[str] = field(default_factory=set)
    """The cells whose owner has admitted it, and those that ran it."""
    hops: int = 0
    """Hand-overs to peers that had it and lost it before the first byte."""
    first_bytes: int = 0


class Link:
    """A connection between two cells, from the home to the peer: what is put at one end arrives at the other after a
    while, in order; whoever closes it ends both."""

    def __init__(self, world: "World", home: str, peer: str) -> None:
        self._world, self._ends = world, frozenset((home, peer))
        self.to_home: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.guest: asyncio.Task[None] | None = None
        self._last_s = 0.0
        self.closed = False

    def say(self, what: str, value: Any = None) -> None:
        """The peer speaks. A link that is cut swallows it, and the peer gives up."""
        if self._world.is_cut(self._ends):
            self._world.after(SILENCE_S, self._break)
        elif not self.closed:
            self._last_s = max(self._last_s + 1e-6, self._world.now + self._world.delay())
            self._world.loop.call_at(self._last_s, self._arrive, what, value)

    def _arrive(self, what: str, value: Any) -> None:
        if not self.closed:
            self.to_home.put_nowait((what, value))

    def _break(self) -> None:
        """Home hears of it once the link is whole again."""
        if not self._world.is_cut(self._ends):
            self.close()
        elif not self.closed:
            if self.guest is not None:
                self.guest.cancel()
            self._world.after(SILENCE_S, self._break)

    def close(self) -> None:
        """Either end closes it: the guest's client is gone, and home hears nothing more."""
        if not self.closed:
            self.closed = True
            self.to_home.put_nowait(("broken", None))
            if self.guest is not None:
                guest = self.guest
                self._world.after(SILENCE_S if self._world.is_cut(self._ends) else self._world.delay(), guest.cancel)


class Relay:
    """Carries out one lease at a peer, as the gateway does."""

    def __init__(self, cell: "Cell", ask: Ask, peer_lease: PeerLease) -> None:
        self.cell, self.ask, self.peer_lease = cell, ask, peer_lease
        self.link = Link(cell.world, cell.name, peer_lease.peer)
        self.taken = self.answering = False

    async def run(self) -> str | None:
        """To its end, in one word; None: the request waits again."""
        dispatcher, lease = self.cell.dispatcher, self.peer_lease.lease
        dispatcher.when_lost(lease, self._recalled)
        self.cell.world.offers += 1
        self.cell.world.spawn(self._post())
        ending = Ending.CANCELLED
        try:
            refusal = await self._listen()
            if refusal is not None and not self.answering:
                dispatcher.came_back(lease, refusal)
                return None
            ending = Ending.FINISHED if refusal is None else Ending.FAILED
            return "answered" if refusal is None else "failed"
        finally:
            self.link.close()
            dispatcher.release(lease, ending)
            if ending is Ending.FINISHED:
                counted = Finished(lease.attempt_id, 200, Usage(100, 0, 64, 0, 1, 0.1, 2.0, 0.0), 0.1, 2.0)
                self.cell.world.after(self.cell.world.delay(), lambda: dispatcher.peer_finished(counted))

    async def _listen(self) -> HopRefusal | None:
        """What comes from the peer, to the end; why it ended otherwise."""
        while True:
            try:
                patience_s = BETWEEN_BYTES_S if self.answering else None if self.taken else self.peer_lease.answer_s
                async with asyncio.timeout(patience_s):
                    what, value = await self.link.to_home.get()
            except TimeoutError:
                return HopRefusal.UNREACHABLE
            match what:
                case "taken":
                    self.taken = True
                case "byte":
                    self.answering = True
                    self.ask.served_by.add(self.peer_lease.peer)
                    self.ask.first_bytes += 1
                    self.cell.dispatcher.first_token(self.peer_lease.lease)
                case "end":
                    return None
                case "refused":
                    return HopRefusal(value)
                case _:
                    self.ask.hops += self.taken
                    return HopRefusal.LOST if self.taken else HopRefusal.UNREACHABLE

    def _recalled(self) -> None:
        if not self.answering:
            self.link.close()

    async def _post(self) -> None:
        world, peer = self.cell.world, self.peer_lease.peer
        await asyncio.sleep(world.delay())
        if world.is_cut(frozenset((self.cell.name, peer))):
            await asyncio.sleep(world.dice.choice((0.0, SILENCE_S)))
            self.link.close()
        elif not self.link.closed:
            self.link.guest = world.spawn(world.cells[peer].serve(self.peer_lease.hop, self.ask, self.link))


class Cell:
    """One cell: a gateway's dispatcher, in which the owner is, and engines."""

    def __init__(self, world: "World", name: str, spec: ClusterSpec, replicas: int) -> None:
        self.world, self.name, self.spec = world, name, spec
        self.dispatcher = Dispatcher(spec.model(MODEL), name)
        self.epoch = 0
        self.running: dict[str, tuple[Lease, bool]] = {}
        self.made = 0
        self.lost: dict[str, asyncio.Event] = {}
        self.engine_ids: set[str] = set()
        self.falls_at_guest = False
        """The next guest that runs here takes all replicas with it, and the next replica comes too late for all."""
        self.change_owner()
        for _ in range(replicas):
            self.add_replica()

    def change_owner(self, gap_s: float = 0.0) -> None:
        """Another owner takes over, perhaps after a while without one."""
        self.dispatcher.follow(None)
        if gap_s:
            self.world.after(gap_s, self.change_owner)
            return
        self.epoch += 1
        dispatcher = self.dispatcher
        own = {"epoch": self.epoch, "replicas": dispatcher.replicas, "records": dispatcher.records}
        owner = LaneOwner(POLICY, decision_log=ReplayedLog(), **own)  # type: ignore[arg-type]
        owner.help_peers(self.spec, self.name, MODEL)
        self.dispatcher.on_ready = lambda facts: owner.replica_up(facts, self._runs_on(facts.replica_id))
        self.dispatcher.follow(owner)
        for facts in self.dispatcher.replicas.ready:
            owner.replica_up(facts, self._runs_on(facts.replica_id))

    def _runs_on(self, replica_id: str) -> list[Running]:
        return [Running(lease, started) for lease, started in self.running.values() if lease.replica_id == replica_id]

    def add_replica(self) -> None:
        self.made += 1
        name = f"{self.name}{self.made}"
        self.lost[name] = asyncio.Event()
        facts = ReplicaFacts(name, MODEL, f"http://{name}", 1, "n", "generate", 10_000, SEATS, 2_048, 65_536)
        self.dispatcher.expect_replica(None)
        self.dispatcher.replica_up(facts)

    def lose_replica(self) -> None:
        """The oldest one's process is gone."""
        for name, lost in self.lost.items():
            if not lost.is_set():
                lost.set()
                self.running = {key: one for key, one in self.running.items() if one[0].replica_id != name}
                self.dispatcher.replica_lost(name)
                return

    def lose_all(self) -> None:
        self.falls_at_guest = False
        self.dispatcher.expect_replica(self.world.now + 600.0)
        for _ in range(self.made):
            self.lose_replica()

    async def client(self, ask: Ask) -> None:
        """One client's request to its end."""
        try:
            how = await self._serve_own(ask)
        except QueueTimeout:
            how = "expired"
        except Rejected as rejected:
            how = f"rejected: {rejected.admission.cause}"
        except asyncio.CancelledError:
            how = "left"
        ask.endings.append(how)

    async def _serve_own(self, ask: Ask) -> str:
        admission = await self.dispatcher.submit(ask.request)
        if not admission.accepted:
            return f"rejected: {admission.cause}"
        while True:
            placement = await self.dispatcher.placement(ask.request)
            if isinstance(placement, PeerLease):
                outcome = await Relay(self, ask, placement).run()
            else:
                ask.entered.add(self.name)
                outcome = await self._run(placement.lease, lambda: self._own_byte(ask))
            if outcome is not None:
                return outcome

    def _own_byte(self, ask: Ask) -> None:
        ask.served_by.add(self.name)
        ask.first_bytes += 1

    async def serve(self, hop: HopFacts, ask: Ask, link: Link) -> None:
        """A guest, as the gateway that a peer has asked serves it."""
        guest = hop.guest(ask.request, self.world.now)
        try:
            early = self.world.dice.random() < 0.5  # else the owner has judged it before its body is here
            if early:
                link.say("taken")
            admission = await self.dispatcher.submit(guest, hop)
            if not early:
                link.say("taken")
            if not admission.accepted:
                link.close()
                return
            ask.entered.add(self.name)
            while True:
                placement = await self.dispatcher.placement(guest)
                assert isinstance(placement, Placement), "a guest goes no further"
                if self.falls_at_guest:
                    self.world.after(0.0, self.lose_all)
                outcome = await self._run(placement.lease, lambda: link.say("byte"))
                if outcome == "answered":
                    link.say("end")
                elif outcome is not None:
                    link.close()
                if outcome is not None:
                    return
        except GuestNotTaken as refused:
            self.world.refusals[refused.refusal] += 1
            link.say("refused", refused.refusal)
        except (QueueTimeout, Rejected):
            link.close()

    async def _run(self, lease: Lease, first_byte: Any) -> str | None:
        """One lease to its end, as the relay runs it; None: the request waits again."""
        lost, attempt_id = self.lost[lease.replica_id], lease.attempt_id
        assert attempt_id not in self.engine_ids, "an engine never sees an id twice"
        self.engine_ids.add(attempt_id)
        if lost.is_set():
            self.dispatcher.refused(lease, None)
            return None
        self.running[attempt_id] = lease, False
        ending = Ending.CANCELLED
        try:
            if await self._lost_within(lost, lease.prefill_tokens / PREFILL_PER_S):
                self.dispatcher.died(lease)
                self.dispatcher.refused(lease, None)
                return None
            self.running[attempt_id] = lease, True
            self.dispatcher.first_token(lease)
            first_byte()
            ending = Ending.FAILED if await self._lost_within(lost, 2.0) else Ending.FINISHED
            return "answered" if ending is Ending.FINISHED else "failed"
        finally:
            self.running.pop(attempt_id, None)
            self.dispatcher.release(lease, ending)
            if ending is Ending.FINISHED:
                prompt = lease.request.prompt_tokens
                self.dispatcher.finished(
                    Finished(attempt_id, 200, Usage(prompt, 0, 64, 0, 1, prompt / PREFILL_PER_S, 2.0, 0.0), 0.1, 2.0)
                )

    async def _lost_within(self, lost: asyncio.Event, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await lost.wait()
        except TimeoutError:
            return False
        return True


class World:
    """The cells, the links between them, and the time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, specs: dict[str, ClusterSpec], replicas: dict[str, int], seed: int
    ) -> None:
        self.loop, self.dice = loop, random.Random(seed)
        self.cuts: list[tuple[float, float, frozenset[str]]] = []
        self.digest_loss = 0.0
        """The share of digests that are lost; of the others, some are late then."""
        self.replays = 0.0
        """The share of digests behind which an older one comes, of any cell."""
        self.liar = ""
        """The cell that says it has room without end."""
        self.recorded: list[Digest] = []
        self.offers = 0
        self.refusals: Counter[str] = Counter()
        self.asks: list[Ask] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.clients: list[asyncio.Task[None]] = []
        self.began_s = self.now
        self.cells = {name: Cell(self, name, spec, replicas[name]) for name, spec in specs.items()}

    @property
    def now(self) -> float:
        return self.loop.time()

    def delay(self) -> float:
        """Of one message (seconds)."""
        return ROUND_TRIP_S / 2 * self.dice.choice((0.9, 1.0, 1.0, 1.1, 3.0))

    def is_cut(self, ends: frozenset[str]) -> bool:
        at_s = self.now - self.began_s
        return any(since <= at_s < until and ends == pair for since, until, pair in self.cuts)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def after(self, seconds: float, call: Any) -> None:
        self.loop.call_later(seconds, call)

    def ask(self, after_s: float, home: str, prompt: int, slo_s: float, patience_s: float, **names: str) -> None:
        """A client's request arrives there and then. One in ten leaves some time later."""

        def arrive() -> None:
            now = self.now
            request = Request(
                f"q{len(self.asks)}", prompt, 64, now, now + slo_s, now + patience_s, chunk_tokens=0, **names
            )
            self.asks.append(ask := Ask(request, home))
            task = self.spawn(self.cells[home].client(ask))
            self.clients.append(task)
            if self.dice.random() < 0.1:
                self.after(self.dice.uniform(0.0, 4.0), task.cancel)

        self.after(after_s, arrive)

    async def run(self, for_s: float, quiet_s: float) -> None:
        """Digests are exchanged for so long, and then what runs comes to its end."""
        exchanges = [self.loop.create_task(self._exchange(cell, for_s + quiet_s)) for cell in self.cells.values()]
        await asyncio.gather(*exchanges)
        until_s = self.now + 120.0
        while self.tasks:
            assert self.now < until_s, ("nothing hangs", self.tasks)
            for cell in self.cells.values():  # gateways go on sweeping
                cell.dispatcher.hand_on(self.now)
                if (own := cell.dispatcher.own) is not None and own.peering is not None:
                    own.peering.ask()
            await asyncio.wait(self.tasks, timeout=1.0)

    async def _exchange(self, cell: Cell, for_s: float) -> None:
        until_s = self.now + for_s
        await asyncio.sleep(self.dice.uniform(0.0, 1.0))
        while self.now < until_s:
            own = cell.dispatcher.own
            if own is not None and own.peering is not None:
                for name, question in own.peering.ask().items():
                    self.loop.create_task(self._question(cell, own, name, question))
            cell.dispatcher.hand_on(self.now)
            await asyncio.sleep(self.dice.uniform(0.9, 1.1))

    async def _question(self, cell: Cell, asker: LaneOwner, name: str, question: Any) -> None:
        ends = frozenset((cell.name, name))
        await asyncio.sleep(self.delay())
        other = self.cells[name].dispatcher.own
        if self.is_cut(ends) or self.dice.random() < self.digest_loss or other is None or other.peering is None:
            return
        digest = other.peering.digest(question)
        if name == self.liar:
            digest = boastful(digest)
        self.recorded.append(digest)
        await asyncio.sleep(self.delay() + self.dice.choice((0.0, 0.0, 0.7, 3.0)) * bool(self.digest_loss))
        replayed = [self.dice.choice(self.recorded)] if self.dice.random() < self.replays else []
        for one in (digest, *replayed):
            if cell.dispatcher.own is asker and asker.peering is not None and not self.is_cut(ends):
                asker.peering.heard(one)


def boastful(digest: Digest) -> Digest:
    """A digest that promises no wait and room without end."""
    lanes = tuple(LaneDigest(lane.name, 0.0, 0.0) for lane in POLICY.lanes)
    room = {"max_sequences": 1_000, "free_sequences": 1_000, "max_kv_tokens": 10**9, "free_kv_tokens": 10**9}
    return replace(digest, models=tuple(replace(one, lanes=lanes, hands_over=False, **room) for one in digest.models))
