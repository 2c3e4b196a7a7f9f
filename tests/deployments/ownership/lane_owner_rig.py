"""A lane owner's surroundings: a submitter that keeps what it is told, and the words of replicas."""

import time

from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.record import RequestState
from deployments.ownership.takeover import Booking, Running
from deployments.protocol import Finished, ReplicaFacts, Usage
from deployments.scheduling import Admission, Lease, Placement, Request


def facts(name: str = "r1", max_num_seqs: int = 8, url: str = "") -> ReplicaFacts:
    return ReplicaFacts(name, "demo", url or f"http://{name}", 1, "n", "generate", 1_024, max_num_seqs, 2_048, 65_536)


def request(name: str = "q", attempts: int = 0, wait_s: float = 60.0) -> Request:
    now = time.monotonic()
    return Request(name, 10, 20, now, now + 1.0, now + wait_s, attempts=attempts)


def account(attempt_id: str, sequences: int = 1, output: int = 6) -> Finished:
    return Finished(attempt_id, 200, Usage(10, 0, output, 0, sequences, 0.1, 0.5, 0.0), 0.1, 0.2)


def running(name: str = "q", attempt: int = 1, replica: str = "r1", started: bool = False) -> Running:
    """What a replica says that it runs."""
    return Running(Booking("g", name, attempt, "", 10, 20, 1, 10, 30, 20, 0).lease(replica, time.monotonic()), started)


class Submitter:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.admissions: list[Admission] = []
        self.placements: list[Placement] = []
        self.urls: list[str] = []
        self.expiries: list[str] = []
        self.moves = 0

    def admitted(self, request_id: str, admission: Admission) -> None:
        self.admissions.append(admission)

    def placed(self, placement: Placement, url: str) -> None:
        self.placements.append(placement)
        self.urls.append(url)

    def expired(self, request_id: str) -> None:
        self.expiries.append(request_id)

    def moved(self) -> None:
        self.moves += 1

    @property
    def leases(self) -> list[Lease]:
        return [placement.lease for placement in self.placements]

    @property
    def attempt_ids(self) -> list[str]:
        return [lease.attempt_id for lease in self.leases]


def state(owner: LaneOwner, name: str = "q") -> RequestState | None:
    record = owner.records.get(name)
    return None if record is None else record.state
