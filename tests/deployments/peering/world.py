"""A model of several cells: the real scheduler and the real peering core in each, a service time, and a network that
delays, loses and reorders. Each cell has its own clock, with its own zero and its own rate.

The model keeps its own account of each request (`Ask`), and checks rules that it states itself: it asks the code under
test for none of them.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cluster.spec import ClusterSpec
from deployments.peering import (
    CellPeering,
    Digest,
    HandedOver,
    HandOverReason,
    Here,
    HopFacts,
    HopRefusal,
    ModelDigest,
    Offer,
    Question,
    Stay,
    model_digest,
    remaining_s,
)
from deployments.peering.digest import LaneDigest
from deployments.scheduling import (
    Capacity,
    Ending,
    LanePolicy,
    Lease,
    Request,
    Scheduler,
    SchedulingPolicy,
    Usage,
    WaitingRequest,
)
from tests.deployments.peering.setups import MODEL

CAPACITY = Capacity(sequences=16, ahead=0, kv_tokens=80_000, step_tokens=2_000, prefill_steps=2.0)
POLICY = SchedulingPolicy((LanePolicy("short", 300, weight=4, max_wait_s=8, cap_s=20), LanePolicy("long", cap_s=40)))
PREFILL_PER_S = 5_000.0
SERVICE_S = 2.0
HOP_LIMIT_S = 1.5
"""After so long without a sign, a connection on which something was lost is closed by both sides."""


@dataclass(eq=False)
class Ask:
    """A client's request, and all that has happened to it."""

    name: str
    home: str
    arrived_s: float
    slo_s: float
    patience_s: float
    prompt: int
    traffic_class: str
    tenant: str
    endings: list[str] = field(default_factory=list)
    served_by: set[str] = field(default_factory=set)
    """The cells whose bytes the client has got."""
    entered: set[str] = field(default_factory=set)
    """The cells whose scheduler has had it."""
    hops: int = 0
    """Hand-overs that a peer took and that home knows of."""
    attempts: int = 0
    ttft_s: float | None = None
    admission: tuple[float, float] | None = None
    lane: str = ""


@dataclass(eq=False)
class Guest:
    """A request of a peer, here."""

    hop: HopFacts
    ask: Ask


class Cell:
    """One cell: a scheduler, its replicas, and its peering."""

    def __init__(self, world: "World", name: str, spec: ClusterSpec, replicas: int, zero_s: float, rate: float) -> None:
        self.world, self.name, self.spec, self.replicas = world, name, spec, replicas
        self.zero_s, self.rate = zero_s, rate
        self.epoch = 0
        self.lies = False
        self.usd_per_mtok: float | None = None
        self.start()

    def now(self) -> float:
        """By its own clock."""
        return self.zero_s + self.rate * self.world.now_s

    def start(self) -> None:
        """It starts, or starts again with nothing in memory but its next epoch."""
        self.epoch += 1
        self.scheduler = Scheduler(POLICY)
        self.peering = CellPeering(self.spec, self.name, self.epoch)
        self.asks: dict[str, Ask] = {}
        self.guests: dict[str, Guest] = {}
        self.leases: dict[str, Lease] = {}
        self.there: set[str] = set()
        """Own requests that a peer has said to have, and has not begun to answer as far as is known."""
        self.guest_ids: dict[str, str] = {}
        """Of own requests, in the cell to which they are handed over last."""
        for number in range(self.replicas):
            self.scheduler.replica_up(f"r{number}", CAPACITY, self.now())

    def restart(self) -> None:
        """It is killed and starts again: its own clients see a reset, peers a broken connection."""
        for ask in self.asks.values():
            self.world.end(ask, "reset")
        for guest in self.guests.values():
            self.world.connection_lost(guest.hop.home, guest.hop.request_id, guest.hop.number, 0.01)
        for request_id, hop in self.peering.away.items():
            guest_id = self.guest_ids[request_id]
            self.world.at(0.01, lambda p=hop.peer, i=guest_id: self.world.cells[p].drop(i))  # type: ignore[misc]
        self.start()

    def digest_model(self) -> ModelDigest:
        stated = model_digest(
            MODEL, self.scheduler.snapshot(self.now()), self.usd_per_mtok, self.peering.hands_over(MODEL, self.now())
        )
        if not self.lies:
            return stated
        lanes = tuple(LaneDigest(lane.name, 0.0, 0.0) for lane in POLICY.lanes)
        return ModelDigest(MODEL, lanes, stated.replicas, 1_000, 1_000, 10**9, 10**9, stated.prefill_tokens_per_s)

    # A request of its own client.
    def arrive(self, ask: Ask) -> None:
        request = self._request(ask)
        self.asks[ask.name] = ask
        if not self.peering.may_serve(MODEL, request):
            self._homeless(ask, request)
            return
        self._submit(ask, request)
        self.step()
        if ask.name in self.asks and ask.name in self.scheduler.lanes.jobs:
            self.consider(ask, request)

    def _request(self, ask: Ask) -> Request:
        arrived_s = self.now() - self.rate * (self.world.now_s - ask.arrived_s)
        return Request(
            ask.name,
            ask.prompt,
            64,
            arrived_s,
            arrived_s + ask.slo_s,
            arrived_s + ask.patience_s,
            traffic_class=ask.traffic_class,
            tenant=ask.tenant,
        )

    def _homeless(self, ask: Ask, request: Request) -> None:
        """It may not be served here: handed over, or rejected."""
        own = self.digest_model()
        lane = POLICY.lanes[POLICY.lane_of(request.prompt_tokens + 64)].name
        decision = self.peering.decide(WaitingRequest(request, lane, None, 64), own, self.now())
        if isinstance(decision, Stay):
            self.finish(ask, f"rejected: {decision.reason}")
        else:
            self._send(decision, ask)

    def _submit(self, ask: Ask, request: Request) -> None:
        admission = self.scheduler.submit(request, self.now())
        ask.lane, ask.admission = admission.lane, admission.eta_s
        if admission.accepted:
            ask.entered.add(self.name)
        else:
            self.finish(ask, f"rejected: {admission.cause}")

    def consider(self, ask: Ask, request: Request) -> None:
        """What waits may go to a peer."""
        own = self.digest_model()
        decision = self.peering.decide(self._wait(ask, request, own), own, self.now())
        self.world.reasons[decision.reason if isinstance(decision, Stay) else decision.hop.reason] += 1
        if isinstance(decision, Offer):
            self._send(decision, ask)
            self.step()

    def _wait(self, ask: Ask, request: Request, own: ModelDigest) -> WaitingRequest:
        lane, waited_s = own.lane(ask.lane), self.now() - request.arrived_s
        lane_s = None if lane is None else lane.p95_s
        p95_s = lane_s
        if lane_s is not None and ask.admission is not None:
            p95_s = remaining_s(ask.admission[1], waited_s, lane_s)
        return WaitingRequest(request, ask.lane, p95_s, 64)

    def _send(self, offer: Offer, ask: Ask) -> None:
        self.scheduler.withdraw(ask.name, self.now())
        ask.attempts += 1
        hop, target = replace(offer.hop, attempt=ask.attempts), offer.peer
        self.guest_ids[ask.name] = hop.guest_id
        self.world.offers += 1
        self.world.carry(self.name, target, lambda: self.world.cells[target].take(hop, ask), hop)
        epoch = self.epoch
        self.world.at(
            offer.answer_s / self.rate,
            lambda: self._unanswered(ask.name, hop.number) if epoch == self.epoch else None,
        )

    def turn(self) -> None:
        """Once a digest has come: what waits is decided on again, the last ones first."""
        own = self.digest_model()
        waiting = [job.request for job in self.scheduler.lanes.jobs.values()]
        mine = (request for request in waiting if request.request_id in self.asks)
        waits = (self._wait(self.asks[request.request_id], request, own) for request in mine)
        for offer in self.peering.reconsider(waits, own, self.now()):
            self.world.reasons[offer.hop.reason] += 1
            self._send(offer, self.asks[offer.hop.request_id])
        self.step()

    # A request of a peer.
    def take(self, hop: HopFacts, ask: Ask) -> None:
        own = self.digest_model()
        lane = own.lane(POLICY.lanes[POLICY.lane_of(ask.prompt + 64)].name)
        refusal = self.peering.take(hop, Here(own.load, None if lane is None else lane.p95_s), self.now())
        if refusal is None:
            now = self.now()
            body = Request(hop.request_id, ask.prompt, 64, 0, 0, 0, traffic_class=ask.traffic_class, tenant=ask.tenant)
            admission = self.scheduler.submit(hop.guest(body, now), now)
            refusal = None if admission.accepted else HopRefusal.REJECTED
        home, request_id, number = hop.home, hop.request_id, hop.number
        if refusal is None and self.world.rng.random() < self.world.refuses_late:
            self.world.carry(self.name, home, lambda: self.world.cells[home].taken(request_id, number), hop)
            self.scheduler.cancel(hop.guest_id, self.now())
            refusal = HopRefusal.LOADED
        if refusal is not None:
            self.world.refusals[refusal] += 1
            self.world.carry(
                self.name, home, lambda: self.world.cells[home].came_back(request_id, number, refusal), hop
            )
            return
        ask.entered.add(self.name)
        self.world.crossed.append((self.world.now_s, home, self.name, hop.reason))
        self.guests[hop.guest_id] = Guest(hop, ask)
        self.world.carry(self.name, home, lambda: self.world.cells[home].taken(request_id, number), hop)
        self.step()

    def drop(self, guest_id: str) -> None:
        """The peer needs it no more."""
        if self.guests.pop(guest_id, None) is None:
            return
        lease = self.leases.pop(guest_id, None)
        if lease is not None:
            self.scheduler.release(lease, Ending.CANCELLED, None, self.now())
        else:
            self.scheduler.cancel(guest_id, self.now())
        self.step()

    # What comes back from the peer.
    def _hop(self, request_id: str, number: int) -> HandedOver | None:
        hop = self.peering.away.get(request_id)
        return hop if hop is not None and hop.number == number else None

    def taken(self, request_id: str, number: int) -> None:
        if self._hop(request_id, number) is not None:
            self.asks[request_id].hops += 1
            self.there.add(request_id)

    def came_back(self, request_id: str, number: int, refusal: HopRefusal) -> None:
        if self._hop(request_id, number) is not None:
            self.there.discard(request_id)
            self.peering.came_back(request_id, refusal, self.now())
            self._again(self.asks[request_id])

    def _again(self, ask: Ask) -> None:
        """Back to its lane. What may not be served here goes to another peer, or is over."""
        if self.scheduler.put_back(ask.name, self.now()):
            self.step()
            return
        request = self._request(ask)
        if self.peering.may_serve(MODEL, request):
            self._submit(ask, request)
            self.step()
        else:
            self._homeless(ask, request)

    def byte(self, request_id: str, number: int, sender: str) -> None:
        if self._hop(request_id, number) is not None:
            ask = self.asks[request_id]
            self.peering.first_token(request_id, self.now())
            ask.served_by.add(sender)
            ask.ttft_s = ask.ttft_s or self.world.now_s - ask.arrived_s

    def answered(self, request_id: str, number: int, sender: str) -> None:
        if self._hop(request_id, number) is not None:
            self.asks[request_id].served_by.add(sender)
            self._over(self.asks[request_id], "finished")

    def broke(self, request_id: str, number: int) -> None:
        hop = self._hop(request_id, number)
        if hop is None:
            return
        if hop.answers:
            self._over(self.asks[request_id], "error")
        else:
            refusal = HopRefusal.LOST if request_id in self.there else HopRefusal.UNREACHABLE
            self.came_back(request_id, number, refusal)

    def _over(self, ask: Ask, how: str) -> None:
        self.scheduler.cancel(ask.name, self.now())
        self.finish(ask, how)

    def _recall(self, request_id: str, hop: HandedOver) -> None:
        """The peer is to drop it."""
        guest_id = self.guest_ids[request_id]
        self.world.carry(self.name, hop.peer, lambda: self.world.cells[hop.peer].drop(guest_id), None)
        self.broke(request_id, hop.number)

    def _unanswered(self, request_id: str, number: int) -> None:
        hop = self._hop(request_id, number)
        if hop is not None and request_id not in self.there:
            self._recall(request_id, hop)

    def sweep(self) -> None:
        for request_id in self.peering.overdue(self.now()):
            self._recall(request_id, self.peering.away[request_id])

    # Serving.
    def step(self) -> None:
        step = self.scheduler.step(self.now())
        for request in (*step.expired, *(one.request for one in step.turned_away)):
            self._gave_up(request.request_id)
        for placement in step.placements:
            self._place(placement.lease)
        wakeup = self.scheduler.next_wakeup()
        if wakeup is not None:
            epoch = self.epoch
            after_s = max(1e-6, (wakeup - self.now()) / self.rate)
            self.world.at(after_s, lambda: self.step() if epoch == self.epoch else None)

    def _gave_up(self, request_id: str) -> None:
        guest = self.guests.pop(request_id, None)
        if guest is not None:
            self.world.connection_lost(guest.hop.home, guest.hop.request_id, guest.hop.number, self.world.delay_s())
        elif request_id in self.asks:
            self.finish(self.asks[request_id], "expired")

    def _place(self, lease: Lease) -> None:
        request_id, epoch = lease.request.request_id, self.epoch
        self.leases[request_id] = lease
        prefill_s = lease.prefill_tokens / PREFILL_PER_S
        self.world.at(prefill_s, lambda: self._token(lease, epoch))
        self.world.at(prefill_s + SERVICE_S, lambda: self._end(lease, epoch, prefill_s))

    def _token(self, lease: Lease, epoch: int) -> None:
        request_id = lease.request.request_id
        if epoch != self.epoch or self.leases.get(request_id) is not lease:
            return
        self.scheduler.first_token(lease, self.now())
        ask, guest = self.asks.get(request_id), self.guests.get(request_id)
        if guest is not None:
            hop = guest.hop
            home = self.world.cells[hop.home]
            self.world.carry(self.name, hop.home, lambda: home.byte(hop.request_id, hop.number, self.name), hop)
        elif ask is not None:
            ask.served_by.add(self.name)
            ask.ttft_s = ask.ttft_s or self.world.now_s - ask.arrived_s
        self.step()

    def _end(self, lease: Lease, epoch: int, prefill_s: float) -> None:
        request_id = lease.request.request_id
        if epoch != self.epoch or self.leases.get(request_id) is not lease:
            return
        del self.leases[request_id]
        usage = Usage(lease.request.prompt_tokens, 0, 64, 0, 1, prefill_s, SERVICE_S)
        self.scheduler.release(lease, Ending.FINISHED, usage, self.now())
        guest = self.guests.pop(request_id, None)
        if guest is not None:
            hop = guest.hop
            home = self.world.cells[hop.home]
            self.world.carry(self.name, hop.home, lambda: home.answered(hop.request_id, hop.number, self.name), hop)
        elif request_id in self.asks:
            self.finish(self.asks[request_id], "finished")
        self.step()

    def finish(self, ask: Ask, how: str) -> None:
        self.world.end(ask, how)
        self.asks.pop(ask.name, None)
        self.there.discard(ask.name)
        self.peering.over(ask.name)


class World:
    """The cells, the network and the time."""

    def __init__(
        self, specs: Mapping[str, ClusterSpec], replicas: Mapping[str, int], rng: random.Random, rtt_s: float = 0.08
    ) -> None:
        self.now_s = 0.0
        self.rng, self.rtt_s = rng, rtt_s
        self.digest_loss = self.replays = 0.0
        self.refuses_late = 0.0
        """How often a peer says that it takes a request, and then that it does not."""
        self.cuts: list[tuple[float, float, frozenset[str]]] = []
        """Partitions: from, until, between these two cells."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.asks: list[Ask] = []
        self.reasons: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.digests: Counter[str] = Counter()
        self.offers = 0
        self.crossed: list[tuple[float, str, str, HandOverReason]] = []
        """Requests that a peer took: when, from, to, why."""
        self.recorded: list[Digest] = []
        self.cells = {
            name: Cell(self, name, spec, replicas[name], rng.uniform(-1e6, 1e6), rng.uniform(0.98, 1.02))
            for name, spec in specs.items()
        }
        for name in self.cells:
            self.at(rng.uniform(0, 1.0), lambda name=name: self._exchange(name))  # type: ignore[misc]

    def at(self, after_s: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + after_s, self._count, call))

    def run(self, until_s: float) -> None:
        """Digests are exchanged until then; what runs goes on to its end."""
        self.until_s = until_s
        while self._events and self._events[0][0] <= until_s + 200.0:
            self.now_s, _, call = heapq.heappop(self._events)
            call()

    def ask(self, at_s: float, home: str, **what: object) -> Ask:
        """A client's request arrives there and then."""
        ask = Ask(f"q{len(self.asks)}", home, at_s, **what)  # type: ignore[arg-type]
        self.asks.append(ask)
        self.at(at_s - self.now_s, lambda: self.cells[home].arrive(ask))
        return ask

    def end(self, ask: Ask, how: str) -> None:
        ask.endings.append(how)

    def delay_s(self) -> float:
        return self.rtt_s / 2 * self.rng.choice((0.9, 1.0, 1.0, 1.1, 3.0))

    def cut(self, one: str, other: str) -> bool:
        return any(since <= self.now_s < until and {one, other} == pair for since, until, pair in self.cuts)

    def carry(self, sender: str, target: str, call: Callable[[], None], hop: HopFacts | None) -> None:
        """A message of a hand-over. What a partition swallows breaks its connection after a while, at both ends; what
        was on its way when a cell was killed breaks it at once."""
        epochs = self.cells[sender].epoch, self.cells[target].epoch

        def arrive() -> None:
            if epochs == (self.cells[sender].epoch, self.cells[target].epoch):
                call()
            elif hop is not None:
                self.connection_lost(hop.home, hop.request_id, hop.number, 0.01)

        if not self.cut(sender, target):
            self.at(self.delay_s(), arrive)
        elif hop is not None:
            guest = self.cells[target if sender == hop.home else sender]
            self.connection_lost(hop.home, hop.request_id, hop.number, HOP_LIMIT_S)
            self.at(HOP_LIMIT_S, lambda: guest.drop(hop.guest_id))

    def connection_lost(self, home: str, request_id: str, number: int, after_s: float) -> None:
        epoch = self.cells[home].epoch
        self.at(
            after_s, lambda: self.cells[home].broke(request_id, number) if epoch == self.cells[home].epoch else None
        )

    def _exchange(self, name: str) -> None:
        cell = self.cells[name]
        cell.sweep()
        for peer, question in cell.peering.ask(cell.now()).items():
            if not self._lost(name, peer):
                self.at(self.delay_s(), lambda p=peer, q=question, e=cell.epoch: self._answer(p, q, name, e))  # type: ignore[misc]
        if self.now_s < self.until_s:
            self.at(self.rng.uniform(0.9, 1.1), lambda: self._exchange(name))

    def _answer(self, peer: str, question: Question, to: str, epoch: int) -> None:
        cell = self.cells[peer]
        digest = cell.peering.answer(question, (cell.digest_model(),))
        self.recorded.append(digest)
        if self._lost(peer, to):
            return
        late_s = self.rng.choice((0.0, 0.0, 0.0, 0.7, 3.0)) if self.digest_loss else 0.0
        self.at(self.delay_s() + late_s, lambda: self._hear(to, digest))
        if self.rng.random() < self.replays:
            old = self.rng.choice(self.recorded)
            self.at(self.delay_s(), lambda: self._hear(to, old))

    def _hear(self, name: str, digest: Digest) -> None:
        cell = self.cells[name]
        refusal = cell.peering.heard(digest, cell.now())
        self.digests[str(refusal)] += 1
        if refusal is None:
            cell.turn()

    def _lost(self, one: str, other: str) -> bool:
        return self.cut(one, other) or self.rng.random() < self.digest_loss

    # What the tests ask.
    @property
    def hops(self) -> int:
        return len(self.crossed)

    def ping_pongs(self, within_s: float = 10.0) -> int:
        """Hand-overs that follow one in the other direction between the same cells within so long. Those that residency
        demands do not count: no other cell may serve them."""
        last_s: dict[tuple[str, str], float] = {}
        found = 0
        for at_s, sender, target, reason in self.crossed:
            if reason is HandOverReason.RESIDENCY:
                continue
            found += at_s - last_s.get((target, sender), -within_s) < within_s
            last_s[sender, target] = at_s
        return found


__all__ = ["Ask", "Cell", "World"]
