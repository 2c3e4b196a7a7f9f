"""What peering costs a request that stays at home: the CPU time of a model's owner for one request, with `peering` in
the spec and without. Both sides run in turns in one process, without HTTP and engines.

    python -m benchmarks.submit --requests 2000 --rounds 15

`placed`: a replica has room; the request is submitted, placed, answered and ended. `waits`: no replica has room, and
the wait is within its SLO; the request is submitted, waits and is given up. The figures are medians over rounds in
microseconds, the ratio is the median of the rounds' ratios, with its range.
"""

import asyncio
import statistics
import time
from typing import Annotated

import typer
import yaml

from cluster.spec import parse_spec
from deployments.ownership.lane_owner import LaneOwner, now_s
from deployments.peering import Digest, HopFacts, HopRefusal, LaneDigest, ModelDigest
from deployments.protocol import Finished, ReplicaFacts
from deployments.scheduling import Admission, Ending, Placement, Request, SchedulingPolicy, Suspicion

MODEL, CELLS = "m", ("eu", "us", "ap")
_SLO_S = {"placed": 1.0, "waits": 600.0}


class NullSubmitter:
    """Hears what the owner decides, and keeps the last placement."""

    def __init__(self) -> None:
        self.placement: Placement | None = None

    def admitted(self, request_id: str, admission: Admission) -> None: ...

    def placed(self, placement: Placement, url: str) -> None:
        self.placement = placement

    def expired(self, request_id: str) -> None: ...

    def moved(self) -> None: ...

    def suspected(self, reported: tuple[Suspicion, ...]) -> None: ...

    def hop_offered(self, peer: str, hop: HopFacts) -> None:
        raise AssertionError("it was to stay at home")

    def hop_confirmed(self, request_id: str, number: int) -> None: ...

    def hop_withdrawn(self, request_id: str, number: int) -> None: ...

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None: ...


class OwnerSide:
    """An owner with one replica."""

    def __init__(self, peered: bool, seats: int) -> None:
        self.owner, self.submitter = LaneOwner(SchedulingPolicy(max_waiting=100_000)), NullSubmitter()
        if peered:
            regions = [
                {"name": one, "endpoint": f"https://{one}.example.org", "pools": [{"name": "p"}]} for one in CELLS
            ]
            content = {
                "name": "x",
                "regions": regions,
                "models": [{"name": MODEL, "source": "s", "settings": {"max_model_len": 10_000}}],
                "peering": {"secret": {"kind": "file"}},
            }
            self.owner.help_peers(parse_spec(yaml.safe_dump(content)), CELLS[0], MODEL)
        facts = ReplicaFacts("r", MODEL, "http://r", 1, "n", "generate", 10_000, seats, 2_048, 10_000_000)
        self.owner.replicas.up(facts)
        self.owner.replica_up(facts)
        self._count = self._sequence = 0

    def hear(self) -> None:
        """Fresh digests of all peers, which have room."""
        peering = self.owner.peering
        if peering is None:
            return
        self._sequence += 1
        lanes = tuple(LaneDigest(lane.name, 0.0, 0.0) for lane in SchedulingPolicy().lanes)
        stated = ModelDigest(MODEL, lanes, 2, 100, 100, 10**6, 10**6, 10_000.0)
        for cell, question in peering.ask().items():
            rules = peering.core.rules
            digest = Digest(cell, 1, self._sequence, question, rules.marks, (stated,))
            assert peering.heard(digest) is None

    def request(self, slo_s: float) -> Request:
        self._count += 1
        now = now_s()
        return Request(f"q{self._count}", 200, 100, now, now + slo_s, now + 600.0)

    def placed(self) -> None:
        """One request, from the lane to the end of its lease."""
        owner, request = self.owner, self.request(_SLO_S["placed"])
        owner.submit(self.submitter, request)
        placement, self.submitter.placement = self.submitter.placement, None
        assert placement is not None
        attempt_id = placement.lease.attempt_id
        owner.first_token(attempt_id)
        owner.release(attempt_id, Ending.FINISHED)
        owner.finished(Finished(attempt_id, 200, 1, 200, 0, 100, 0, 0.0, 0.02, 1.0, 0.1, 1.0))

    def waits(self) -> None:
        """One request, from the lane until it is given up."""
        request = self.request(_SLO_S["waits"])
        self.owner.submit(self.submitter, request)
        self.owner.cancel(request.request_id)


def measure(side: OwnerSide, what: str, requests: int) -> float:
    """Microseconds of CPU time for one request."""
    side.hear()
    run = getattr(side, what)
    began = time.process_time()
    for _ in range(requests):
        run()
    return (time.process_time() - began) / requests * 1e6


async def compare(what: str, requests: int, rounds: int) -> None:
    """Prints one line."""
    alone, peered = OwnerSide(False, 256), OwnerSide(True, 256)
    for side in (alone, peered):
        for _ in range(256 + 64 if what == "waits" else 0):  # the replica is full, and a rate is known
            side.owner.submit(side.submitter, side.request(_SLO_S["waits"]))
        measure(side, what, requests // 10)
    pairs = []
    for number in range(rounds):
        first, second = (alone, peered) if number % 2 else (peered, alone)
        times = {side: measure(side, what, requests) for side in (first, second)}
        pairs.append((times[alone], times[peered]))
    without, with_peers = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(one[1] / one[0] for one in pairs)
    print(
        f"{what:7} without {without:6.1f} us, with {with_peers:6.1f} us, ratio {statistics.median(ratios):.3f} "
        f"({ratios[0]:.3f} to {ratios[-1]:.3f}, {rounds} rounds of {requests})"
    )
    for side in (alone, peered):
        side.owner.close()


def main(
    requests: Annotated[int, typer.Option(min=10, help="In each round.")] = 2_000,
    rounds: Annotated[int, typer.Option(min=1)] = 15,
) -> None:
    """Compares an owner with peers and one without."""
    for what in ("placed", "waits"):
        asyncio.run(compare(what, requests, rounds))


if __name__ == "__main__":
    typer.run(main)
