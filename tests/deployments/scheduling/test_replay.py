"""A recorded run replays: every decision again, from any file of the log; a change of code or of one decision is
seen."""

import random
from dataclasses import replace

import pytest

from deployments.decisions import Entry, Header, Input, LogError, plain, replay
from deployments.scheduling import Ending, Lease, Suspicion, TenantPolicy, Usage
from deployments.scheduling.recorder import SCHEDULING, RecordingScheduler
from deployments.wire import encode
from tests.deployments.scheduling.world import CAPACITY, POLICY, make_request


def drive(scheduler: RecordingScheduler, seed: int, turns: int = 300, headers: tuple[int, ...] = ()) -> None:
    """Everything that a gateway does to a scheduler, at random, on a clock of nanoseconds."""
    dice = random.Random(seed)
    ns, live = 5_000_000_000, list[Lease]()
    policies = (POLICY, POLICY.__class__(lanes=POLICY.lanes[::2], tenants={"b": TenantPolicy(2.0, max_concurrency=9)}))
    scheduler.replica_up("r0", CAPACITY, ns / 1e9)
    for turn in range(turns):
        ns += dice.randrange(1, 400_000_000)
        now = ns / 1e9
        if turn in headers:
            scheduler.begin(now)
        choice = dice.random()
        if choice < 0.5:
            prefix = tuple(dice.randrange(3) for _ in range(dice.randrange(4)))
            request = make_request(
                f"q{turn}",
                dice.randrange(1, 3_000),
                dice.choice([None, 40, 300]),
                now,
                dice.uniform(1, 60),
                prefix=prefix,
            )
            scheduler.submit(replace(request, digest=f"d{dice.randrange(400)}"), now)
        elif choice < 0.7 and live:
            lease = live.pop(dice.randrange(len(live)))
            usage = Usage(lease.request.prompt_tokens, 3, dice.randrange(1, 300), 0, 1, 0.1, 0.4)
            scheduler.release(lease, dice.choice([Ending.FINISHED, Ending.CANCELLED, Ending.FAILED]), None, now)
            scheduler.learn(lease, usage, now)
        elif choice < 0.78 and live:
            scheduler.first_token(dice.choice(live), now)
        elif choice < 0.79 and live:
            scheduler.died(dice.choice(live), now)
        elif choice < 0.8:
            scheduler.recall(
                Suspicion(
                    f"d{dice.randrange(400)}", dice.randrange(1, 3), dice.random() < 0.5, now - dice.uniform(0, 900)
                ),
                now,
            )
        elif choice < 0.85:
            scheduler.cancel(f"q{dice.randrange(turn + 1)}", now)
        elif choice < 0.9:
            scheduler.replica_up(f"r{dice.randrange(3)}", CAPACITY, now)
        elif choice < 0.93:
            dice.choice([scheduler.replica_unresponsive, scheduler.replica_draining, scheduler.replica_cordoned])(
                f"r{dice.randrange(3)}", now
            )
        elif choice < 0.94:
            scheduler.replica_uncordoned(f"r{dice.randrange(3)}", now)
        elif choice < 0.95:
            lost = scheduler.replica_lost(f"r{dice.randrange(3)}", now)
            live = [lease for lease in live if lease not in lost]
        elif choice < 0.97:
            scheduler.configure(dice.choice(policies), now)
        elif choice < 0.98:
            scheduler.expect_replica(dice.choice([None, now + dice.uniform(0, 50)]), now)
        placements = scheduler.step(now).placements
        live += [placement.lease for placement in placements]
        scheduler.snapshot(now)
        scheduler.next_wakeup()


def recording() -> tuple[RecordingScheduler, list[Entry]]:
    """One whose log has begun, and its entries."""
    entries: list[Entry] = []
    scheduler = RecordingScheduler(POLICY, entries.append)
    scheduler.begin(5.0)
    return scheduler, entries


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(8))
def test_a_log_replays_every_decision(seed: int) -> None:
    scheduler, entries = recording()
    drive(scheduler, seed)
    found = replay(entries, (SCHEDULING,))
    assert found.difference is None
    assert (found.inputs, found.counted) == (len(entries) - 1, scheduler.placing.placed)
    assert found.counted > 10


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(4))
def test_each_file_of_a_log_replays_alone(seed: int) -> None:
    scheduler, entries = recording()
    drive(scheduler, seed, headers=(100, 200))
    starts = [number for number, entry in enumerate(entries) if isinstance(entry, Header)]
    assert len(starts) == 3
    for start in starts:
        assert replay(entries[start:], (SCHEDULING,)).difference is None
    whole = replay(entries, (SCHEDULING,))
    assert (whole.difference, whole.gaps) == (None, 0), "and the whole, over the headers in its middle"
    gap = replay([*entries[: starts[1] - 1], *entries[starts[1] :]], (SCHEDULING,))
    assert (gap.difference, gap.gaps) == (None, 1), "and over what is missing before one of them"


def test_another_decision_is_found_and_told() -> None:
    scheduler, entries = recording()
    drive(scheduler, 1)
    steps = [(n, one) for n, one in enumerate(entries) if isinstance(one, Input) and one.method == "step"]
    number, step = next((n, one) for n, one in steps if plain(one.decision)["placed"])
    other = plain(step.decision)
    other["placed"][0][2] = "another-replica"
    found = replay([*entries[:number], replace(step, decision=encode(other)), *entries[number + 1 :]], (SCHEDULING,))
    assert found.difference is not None
    assert (found.difference.number, found.difference.input.method) == (number + 1, "step")
    assert (found.difference.recorded, found.difference.replayed) == (other, plain(step.decision))
    placed = sum(len(plain(one.decision)["placed"]) for n, one in steps if n <= number)
    assert (found.inputs, found.counted, found.gaps) == (number, placed, 0), "those up to it, and itself"


def test_a_log_of_other_code_is_replayed_on_purpose_alone() -> None:
    scheduler, entries = recording()
    scheduler.step(6.0)
    header, step = entries
    assert isinstance(header, Header)
    other = [replace(header, code="other"), step]
    with pytest.raises(LogError, match="recorded by code other"):
        replay(other, (SCHEDULING,))
    assert replay(other, (SCHEDULING,), any_code=True).difference is None


@pytest.mark.parametrize("name", ["pickle.loads", "pickle", "io.BytesIO", "Path"])
def test_a_header_reaches_nothing_but_the_schedulers_own_classes(name: str) -> None:
    entries: list[Entry] = []
    RecordingScheduler(POLICY, entries.append).begin(0.0)
    (header,) = entries
    assert isinstance(header, Header)
    for module in ("deployments.scheduling.recorder", "deployments.scheduling.scheduler", "os"):
        named = (module.encode(), name.encode())
        hostile = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(one)]) + one for one in named) + b"\x93."
        with pytest.raises(LogError, match=r"has no place in a log|Can.t get attribute"):
            replay([replace(header, state=hostile)], (SCHEDULING,))
