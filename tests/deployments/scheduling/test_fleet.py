"""Which replica is found for a job, and what is said where none is."""

import pytest

from deployments.scheduling import Capacity, Lease, WaitReason
from deployments.scheduling.fleet import Fleet
from deployments.scheduling.pick import MinTtft
from deployments.scheduling.replica import ReplicaStatus
from deployments.scheduling.request import Job
from tests.deployments.scheduling.world import make_job, make_request

CAPACITY = Capacity(sequences=4, ahead=1, kv_tokens=1_000, step_tokens=300, prefill_steps=2.0)


class World:
    """A fleet of replicas `r0`, `r1`, ... and a way to load them."""

    def __init__(self, replicas: int) -> None:
        self.fleet = Fleet(MinTtft())
        self.leases = 0
        for number in range(replicas):
            self.fleet.up(f"r{number}", CAPACITY)

    def load(self, name: str, kv: int = 10, prefill: int = 0, sequences: int = 1) -> Lease:
        """Binds a lease with those books."""
        self.leases += 1
        lease = Lease(
            self.leases, make_request(f"q{self.leases}", sequences=sequences), name, 0.0, 1, prefill, kv, 5, 0
        )
        self.fleet.by_id[name].bind(lease)
        self.fleet.touch(self.fleet.by_id[name])
        return lease

    def found(self, asks: Job) -> list[str]:
        """The names of what fits."""
        fitting = self.fleet.fitting(asks)
        assert isinstance(fitting, list), fitting
        return [replica.replica_id for replica in fitting]


def test_one_that_has_a_budget_of_prompts_to_prefill_is_not_open() -> None:
    world = World(2)
    world.load("r0", prefill=600)
    lease = world.load("r1", prefill=599)
    assert world.found(make_job(prefill=5_000)) == ["r1"]
    world.load("r1", prefill=1)
    assert not world.fleet.any_open
    assert world.fleet.fitting(make_job(prefill=1)) is WaitReason.PREFILL_BUDGET
    world.fleet.by_id["r1"].first_token(lease)
    world.fleet.touch(world.fleet.by_id["r1"])
    assert world.found(make_job(prefill=5_000)) == ["r1"]


def test_what_the_freest_cannot_take_for_another_reason_waits_for_what_the_least_loaded_lack() -> None:
    world = World(6)
    for number in range(5):
        world.load(f"r{number}", kv=900, prefill=number)
    world.load("r5", kv=101, sequences=4, prefill=595)
    assert world.fleet.fitting(make_job(kv=200, prefill=0, sequences=2)) is WaitReason.KV_TOKENS


def test_why_none_is_open() -> None:
    world = World(0)
    assert world.fleet.why_none_is_open() is WaitReason.NO_READY_REPLICA
    world.fleet.up("r0", CAPACITY)
    assert world.fleet.why_none_is_open() is WaitReason.SEQUENCES
    world.fleet.reserved = 1
    assert world.fleet.why_none_is_open() is WaitReason.RESERVED
    world.fleet.set_status("r0", ReplicaStatus.UNRESPONSIVE)
    assert world.fleet.why_none_is_open() is WaitReason.NO_READY_REPLICA
    assert world.fleet.fitting(make_job()) is WaitReason.NO_READY_REPLICA


def test_open_ready_and_deserted() -> None:
    world = World(1)
    fleet = world.fleet
    assert (fleet.any_open, fleet.any_ready, fleet.is_deserted_by(None)) == (True, True, False)
    lease = world.load("r0", sequences=5)
    assert (fleet.any_open, fleet.any_ready, fleet.is_deserted_by(None)) == (False, True, False)
    fleet.by_id["r0"].unbind(lease)
    fleet.set_status("r0", ReplicaStatus.UNRESPONSIVE)
    assert (fleet.any_open, fleet.any_ready, fleet.is_deserted_by(None)) == (False, False, False)
    fleet.set_status("r0", ReplicaStatus.DRAINING)
    assert (fleet.any_open, fleet.any_ready, fleet.is_deserted_by(None)) == (False, False, True)
    fleet.set_status("nobody", ReplicaStatus.READY)
    fleet.remove(fleet.up("r0", CAPACITY))
    assert (fleet.any_open, fleet.any_ready, fleet.is_deserted_by(None), fleet.by_id) == (False, False, True, {})


@pytest.mark.parametrize("known", [True, False])
def test_a_cordon_stands_whatever_a_replica_says(known: bool) -> None:
    world = World(int(known))
    world.fleet.cordon("r0", True)
    replica = world.fleet.up("r0", CAPACITY)
    assert (replica.status, world.fleet.any_open) == (ReplicaStatus.CORDONED, False)
    world.fleet.set_status("r0", ReplicaStatus.UNRESPONSIVE)
    world.fleet.cordon("r0", False)
    assert replica.status is ReplicaStatus.UNRESPONSIVE
    world.fleet.up("r0", CAPACITY)
    assert (replica.status, world.fleet.any_open) == (ReplicaStatus.READY, True)
