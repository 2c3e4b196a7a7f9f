"""A recorded run replays: every decision again, from any file of the log; a change of code or of one decision is
seen."""

import base64
import json
import random
from dataclasses import replace

import pytest

from deployments.scheduling import Ending, Lease, Scheduler, Suspicion, TenantPolicy, Usage
from deployments.scheduling.recorder import SCHEMA_VERSION, RecordingScheduler, code_hash, nanoseconds
from deployments.scheduling.replay import ReplayError, replay
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
        assert nanoseconds(now) / 1e9 == now
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


@pytest.mark.parametrize("seed", range(8))
def test_a_log_replays_every_decision(seed: int) -> None:
    lines: list[str] = []
    scheduler = RecordingScheduler(POLICY, lines.append)
    scheduler.begin(5.0)
    drive(scheduler, seed)
    found = replay(lines)
    assert found.difference is None
    assert (found.inputs, found.placed) == (len(lines) - 1, scheduler.placing.placed)
    assert found.placed > 10


@pytest.mark.parametrize("seed", range(4))
def test_each_file_of_a_log_replays_alone(seed: int) -> None:
    lines: list[str] = []
    scheduler = RecordingScheduler(POLICY, lines.append)
    scheduler.begin(5.0)
    drive(scheduler, seed, headers=(100, 200))
    starts = [number for number, line in enumerate(lines) if line.startswith("{")]
    assert len(starts) == 3
    for start in starts:
        assert replay(lines[start:]).difference is None
    assert replay(lines).difference is None, "and the whole, over the headers in its middle"


def test_a_recording_scheduler_decides_as_a_plain_one() -> None:
    lines: list[str] = []
    recording, plain = RecordingScheduler(POLICY, lines.append), Scheduler(POLICY)
    for scheduler in (recording, plain):
        scheduler.replica_up("r0", CAPACITY, 0.0)
        for number in range(40):
            scheduler.submit(make_request(f"q{number}", 100 + number), 0.1)
    assert recording.step(0.2) == plain.step(0.2)


def test_another_decision_is_found_and_told() -> None:
    lines: list[str] = []
    scheduler = RecordingScheduler(POLICY, lines.append)
    scheduler.begin(5.0)
    drive(scheduler, 1)
    number = next(
        n
        for n, line in enumerate(lines)
        if line.startswith("[") and json.loads(line)[1] == "step" and json.loads(line)[3]["placed"]
    )
    entry = json.loads(lines[number])
    entry[3]["placed"][0][2] = "another-replica"
    found = replay([*lines[:number], json.dumps(entry), *lines[number + 1 :]])
    assert found.difference is not None
    assert (found.difference.line, found.difference.method) == (number + 1, "step")
    assert found.difference.recorded == entry[3]
    assert found.difference.replayed == json.loads(lines[number])[3]
    placed = [len(json.loads(line)[3]["placed"]) for line in lines[1 : number + 1] if json.loads(line)[1] == "step"]
    assert (found.inputs, found.placed, found.gaps) == (number, sum(placed), 0), "those up to it, and itself"


def test_what_is_no_log_is_refused() -> None:
    lines: list[str] = []
    scheduler = RecordingScheduler(POLICY, lines.append)
    scheduler.begin(5.0)
    scheduler.step(6.0)
    header = json.loads(lines[0])
    bad = [
        ["nonsense"],
        ["3"],
        [lines[1]],
        [json.dumps({**header, "schema": 99})],
        [json.dumps({**header, "code": "other"})],
        [json.dumps({**header, "state": "AAAA"})],
        [json.dumps({**header, "state": "gASVHQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAJpZJSFlFKULg=="})],
        [lines[0], json.dumps([6, "shut_down", [], None])],
    ]
    for log in bad:
        with pytest.raises(ReplayError):
            replay(log)
    assert replay([json.dumps({**header, "code": "other"}), lines[1]], any_code=True).difference is None


@pytest.mark.parametrize("name", ["pickle.loads", "pickle", "io.BytesIO", "Path"])
def test_a_header_reaches_nothing_but_the_schedulers_own_classes(name: str) -> None:
    for module in ("deployments.scheduling.replay", "deployments.scheduling.recorder", "os"):
        hostile = (
            b"\x80\x04"
            + b"\x8c"
            + bytes([len(module)])
            + module.encode()
            + b"\x8c"
            + bytes([len(name)])
            + name.encode()
            + b"\x93."
        )
        header = {"schema": SCHEMA_VERSION, "code": code_hash(), "ns": 0, "state": base64.b64encode(hostile).decode()}
        with pytest.raises(ReplayError, match=r"has no place in a log|Can.t get attribute"):
            replay([json.dumps(header)])
