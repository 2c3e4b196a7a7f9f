"""An owner whose cell has peers, for the tests of its peering: its clock, a gateway that keeps what it hears, and peers
of which only the words are there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from cluster.spec import ClusterSpec
from deployments.ownership import lane_owner, messages
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.peering import LanePeering
from deployments.ownership.record import OVER, RequestState
from deployments.ownership.roles import PeerLease
from deployments.peering import HopFacts, HopRefusal, ModelDigest, Rules
from deployments.protocol import ReplicaFacts
from deployments.scheduling import Admission, Ending, Placement, Request, SchedulingPolicy
from tests.deployments.ownership.replayed_log import ReplayedLog
from tests.deployments.peering.setups import CELLS, MODEL, make_digest, make_hop, make_model, make_request, make_spec


class Clock:
    """The owner's."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)


class Gateway:
    """A submitter: `heard` has what it was told, in order, as the name and what tells cases apart."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.leases: dict[str, PeerLease] = {}
        """Of requests that were handed over, the last one."""
        self.placements: list[Placement] = []
        self.left: dict[str, LaneOwner] = {}
        """Requests whose clients have just left, and the owner that is to hear of it."""

    def admitted(self, request_id: str, admission: Admission) -> None:
        assert crossed(messages.Admitted(request_id, admission)) == [messages.Admitted(request_id, admission)]
        assert admission.lane in ("", *(lane.name for lane in SchedulingPolicy().lanes))
        self.heard.append(("admitted", request_id, admission.kind.value, admission.cause))

    def placed(self, placement: Placement, url: str) -> None:
        self.placements.append(placement)
        self.heard.append(("placed", placement.request.request_id))

    def expired(self, request_id: str) -> None:
        self.heard.append(("expired", request_id))

    def moved(self) -> None:
        self.heard.append(("moved",))

    def suspected(self, reported: object) -> None: ...

    def handed_over(self, peer_lease: PeerLease) -> None:
        assert peer_lease.hop.attempt_id == peer_lease.lease.attempt_id
        assert peer_lease.lease.replica_id == f"cell {peer_lease.peer}"
        assert crossed(messages.PlacedAtPeer(peer_lease)) == [messages.PlacedAtPeer(peer_lease)]
        self.leases[peer_lease.hop.request_id] = peer_lease
        self.heard.append(("handed over", peer_lease.hop.request_id, peer_lease.peer))
        if (owner := self.left.get(peer_lease.hop.request_id)) is not None:
            owner.release(peer_lease.lease.attempt_id, Ending.CANCELLED)

    def recalled(self, attempt_id: str) -> None:
        self.heard.append(("recalled", attempt_id))

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        self.heard.append(("refused", request_id, refusal))

    def news(self) -> list[tuple[Any, ...]]:
        """What it was told since it was last asked."""
        heard, self.heard = self.heard, []
        return heard


def make_facts(name: str = "r1", seats: int = 1) -> ReplicaFacts:
    return ReplicaFacts(name, MODEL, f"http://{name}", 1, "n", "generate", 10_000, seats, 2_048, 65_536)


class PeeredOwner:
    """The owner of the model in the cell `eu`; `us` and `ap` answer what they are made to."""

    def __init__(self, clock: Clock, spec: ClusterSpec | None = None, max_waiting: int = 100, epoch: int = 1) -> None:
        self.clock = clock
        self.spec = spec or make_spec()
        self.owner = LaneOwner(SchedulingPolicy(max_waiting=max_waiting), epoch=epoch, decision_log=ReplayedLog())
        self.owner.help_peers(self.spec, "eu", MODEL)
        self.gateway = Gateway()
        self._sequence = 0

    @property
    def peering(self) -> LanePeering:
        assert self.owner.peering is not None
        return self.owner.peering

    def replica(self, seats: int = 1, name: str = "r1") -> None:
        """A replica is ready."""
        facts = make_facts(name, seats)
        self.owner.replicas.up(facts)
        self.owner.replica_up(facts)

    def digests(self, *models: tuple[str, ModelDigest], spec: ClusterSpec | None = None) -> list[Any]:
        """Asks the peers, and hears those."""
        asked = self.peering.ask()
        self.clock.now += 0.05
        self._sequence += 1
        marks = Rules(spec or self.spec).marks
        return [
            self.peering.heard(make_digest(cell, asked[cell], model, 1, self._sequence, marks))
            for cell, model in models
        ]

    def helpful(self, *cells: str) -> None:
        """These peers have room, and no wait, in the lanes of the shipped policy."""
        self.digests(*((cell, lanes_of(make_model())) for cell in cells or ("us", "ap")))

    def request(self, name: str = "q", **what: Any) -> Request:
        return make_request(name, self.clock.now, **what)

    def submit(self, name: str = "q", **what: Any) -> None:
        self.owner.submit(self.gateway, self.request(name, **what))

    # What the gateway reports.
    def refused(self, name: str = "q", refusal: HopRefusal = HopRefusal.LATE) -> None:
        self.owner.refused(self.gateway, self.gateway.leases[name].lease, refusal)

    def first_token(self, name: str = "q", ago_s: float = 0.0) -> None:
        self.owner.first_token(self.gateway.leases[name].lease.attempt_id, ago_s)

    def finished(self, name: str = "q") -> None:
        self.owner.release(self.gateway.leases[name].lease.attempt_id, Ending.FINISHED)

    def state(self, name: str = "q") -> RequestState | None:
        """None: it is over, or unknown."""
        record = self.owner.records.get(name)
        return None if record is None or record.state in OVER else record.state

    def is_clean(self) -> bool:
        """Whether nothing is left of any request but leases."""
        core, scheduler = self.peering.core, self.owner.scheduler
        self.peering.ask()
        peers = core.peers.by_cell.values()
        return (
            not (core.away or core.offered or self.peering._homeless)
            and not any(peer.unseen or peer.seen or peer.on_its_way for peer in peers)
            and not scheduler.snapshot(self.clock.now).away
            and not scheduler.waiting.all(self.clock.now)
        )


def lanes_of(model: ModelDigest) -> ModelDigest:
    """The digest with its one wait in each lane of the shipped policy."""
    first = model.lanes[0]
    names = [lane.name for lane in SchedulingPolicy().lanes]
    fields = {name: getattr(model, name) for name in ModelDigest.__slots__}
    return ModelDigest(**{**fields, "lanes": tuple(first._replace(lane=name) for name in names)})


def guest_facts(name: str = "g", number: int = 1, spec: ClusterSpec | None = None, **changes: Any) -> HopFacts:
    """Of a hop from `us` to `eu`."""
    own = {"request_id": name, "home": "us", "attempt": number, "number": number, "residency": frozenset(CELLS)}
    return make_hop(spec or make_spec(), **own | changes)


def crossed(*said: messages.Message) -> list[messages.Message]:
    """What comes out at the other end of a channel."""
    return messages.MessageReader().feed(b"".join(map(messages.encode, (messages.Opening(messages.VERSION), *said))))


@contextmanager
def owner_time() -> Iterator[Clock]:
    """The owner reads this clock."""
    clock = Clock()
    with mock.patch.object(lane_owner, "time", clock):
        yield clock
