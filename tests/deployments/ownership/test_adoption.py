"""How a lane owner takes over what ran under an owner before: holders and replicas both have to say so."""

from dataclasses import replace

import pytest

from deployments.ownership.entries import EntryState
from deployments.ownership.lane_owner import LaneOwner
from deployments.scheduling import Ending
from tests.deployments.ownership.lane_owner_rig import Submitter, account, facts, request, running, state


async def test_a_lease_of_an_owner_before_is_booked_when_both_have_said_so(
    owner: LaneOwner, submitter: Submitter
) -> None:
    owner.hold(submitter, "q-3")
    assert (state(owner), owner.snapshot().adopted) == (EntryState.DECLARED, 0)
    owner.replica_up(facts(), [running(attempt=3), running("r", 1, started=True)])
    assert (state(owner), state(owner, "r")) == (EntryState.RUNNING, EntryState.ORPHANED)
    assert (owner.snapshot().adopted, owner.adoption.reconciled, owner.entries.replicas_of_orphans) == (2, 2, {"r1"})
    assert owner.scheduler.fleet.by_id["r1"].prefill_tokens == 10, "the other has begun to answer"
    owner.hold(submitter, "r-1")
    assert (state(owner, "r"), owner.entries.replicas_of_orphans) == (EntryState.RUNNING, set())
    owner.replica_up(facts(), [running(attempt=3)])
    assert (owner.snapshot().adopted, state(owner, "r")) == (2, EntryState.RUNNING), (
        "what is held is not a replica's to take away"
    )


async def test_a_lease_of_an_owner_before_that_is_refused_waits_as_its_submitter_describes_it(
    owner: LaneOwner, submitter: Submitter
) -> None:
    owner.replica_up(facts(), [running(attempt=2)])
    owner.hold(submitter, "q-2")
    owner.refused(submitter, replace(running(attempt=2).lease, request=request()), None)
    assert (submitter.attempt_ids, owner.snapshot().endings["failed"]) == ([], 1)
    owner.replica_up(facts())
    assert submitter.attempt_ids == ["q-3"]


async def test_a_request_that_comes_again_without_a_lease_gets_the_next_attempt(
    owner: LaneOwner, submitter: Submitter
) -> None:
    """Its channel broke: what this owner issued meanwhile, its submitter has not heard of."""
    owner.hold(submitter, "declared-1")
    owner.submit(submitter, request("declared", attempts=1), admitted=True)
    owner.replica_state("r1", None)
    owner.submit(submitter, request("waits"))
    owner.submit(submitter, request("waits", attempts=3), admitted=True)
    owner.replica_up(facts())
    assert submitter.attempt_ids == ["declared-2", "waits-4"]


async def test_an_orphan_that_its_replica_does_not_run_is_ended(owner: LaneOwner) -> None:
    owner.replica_up(facts(), [running("a"), running("b")])
    assert owner.adoption.reconciled == 2
    owner.replica_up(facts(), [running("b")])
    assert (state(owner, "a"), state(owner, "b"), owner.adoption.reconciled) == (
        EntryState.CLOSED,
        EntryState.ORPHANED,
        3,
    )
    assert owner.snapshot().endings["failed"] == 1


@pytest.mark.parametrize(("sequences", "ending"), [(1, "finished"), (0, "failed")])
async def test_an_orphan_ends_with_its_engines_account(owner: LaneOwner, sequences: int, ending: str) -> None:
    owner.replica_up(facts(), [running()])
    owner.finished(account("q-1", sequences))
    assert (state(owner), owner.snapshot().endings[ending]) == (EntryState.CLOSED, 1)


async def test_a_declared_lease_ends_unbooked(owner: LaneOwner, submitter: Submitter) -> None:
    for name, end in (
        ("a", lambda: owner.release("a-1", Ending.FINISHED)),
        ("b", lambda: owner.finished(account("b-1"))),
        ("c", lambda: owner.left(submitter)),
    ):
        owner.hold(submitter, f"{name}-1")
        end()
        assert state(owner, name) is EntryState.CLOSED
    owner.hold(submitter, "nonsense")
    assert owner.snapshot().endings == {"finished": 0, "cancelled": 0, "failed": 0, "refused": 0}


async def test_a_holder_that_is_gone_leaves_what_runs_and_nothing_that_waits(
    owner: LaneOwner, submitter: Submitter
) -> None:
    stays = Submitter()
    for name in ("runs", "whole", "cut"):
        owner.submit(submitter, request(name))
    owner.finished(account("whole-1"))
    owner.finished(account("cut-1", 0))
    owner.submit(stays, request("other"))
    owner.replica_state("r1", None)
    owner.submit(submitter, request("waits"))
    owner.left(submitter)
    states = {name: state(owner, name) for name in ("runs", "whole", "cut", "waits", "other")}
    assert states == {
        "runs": EntryState.ORPHANED,
        "whole": EntryState.CLOSED,
        "cut": EntryState.CLOSED,
        "waits": None,
        "other": EntryState.RUNNING,
    }
    endings = owner.snapshot().endings
    assert (endings["finished"], endings["failed"]) == (1, 1)
    assert owner.scheduler.lanes.jobs == {}
