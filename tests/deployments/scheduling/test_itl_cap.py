"""The cap that keeps the time between tokens: its bounds, when it moves and when it rests, and what a scheduler makes
of it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import DEFAULT_GROUP
from deployments.decisions import Entry, Header, replay
from deployments.scheduling import Capacity, Ending, Lease, Scheduler, Usage, WaitReason
from deployments.scheduling.itl_cap import FLOOR, RETRY_S, TURN_S, ClassCap, ItlCap, ItlTarget, levels
from deployments.scheduling.recorder import SCHEDULING, RecordingScheduler
from deployments.scheduling.snapshot import ReplicaStats
from tests.deployments.scheduling.world import POLICY, make_request

TARGET = ItlTarget(0.05, 0.9)
OTHER = ItlTarget(0.5, 0.9)
CAPACITY = Capacity(64, 0, 100_000, 10_000, 1.0)
LATE, IN_TIME = 0.06, 0.04


def turned(cap: ClassCap, late: int, answers: int, now: float, peak: int = 1 << 20) -> int:
    """The cap after a turn in which so many answers ended, so many of them late."""
    for number in range(answers):
        cap.ended(LATE if number < late else IN_TIME, now - 0.1, now)
    cap.turn(peak, now)
    return cap.sequences


@pytest.mark.whole
@given(
    maximum=st.integers(1, 1_024),
    start=st.integers(0, 2_000),
    turns=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60), st.integers(0, 1_024))),
)
def test_the_cap_stays_between_its_floor_and_max_num_seqs(
    maximum: int, start: int, turns: list[tuple[float, int, int]]
) -> None:
    cap = ClassCap(TARGET, maximum, start)
    for number, (share, answers, peak) in enumerate(turns, 1):
        after = turned(cap, round(share * answers), answers, TURN_S * number, peak)
        assert min(FLOOR, maximum) <= after <= maximum


@given(
    late=st.integers(0, 59),
    answers=st.integers(1, 60),
    peak=st.integers(0, 64),
    before=st.lists(st.integers(0, 20), max_size=12),
)
def test_one_more_late_answer_never_raises_the_cap(late: int, answers: int, peak: int, before: list[int]) -> None:
    found = []
    for more in (0, 1):
        cap = ClassCap(TARGET, 64, 30)
        for number, missed in enumerate(before, 1):
            turned(cap, missed, 20, TURN_S * number)
        found.append(turned(cap, min(answers, late + more), answers, TURN_S * (len(before) + 1), peak))
    assert found[1] <= found[0]


@pytest.mark.whole
@given(
    start=st.integers(1, 256), best=st.integers(FLOOR, 256), answers=st.integers(20, 200), slope=st.floats(0.01, 0.3)
)
def test_under_a_steady_load_the_cap_rests_on_a_pair_of_neighbours(
    start: int, best: int, answers: int, slope: float
) -> None:
    cap, steps, seen = ClassCap(TARGET, 256, start), levels(256), []
    for number in range(1, 361):
        share = min(1.0, max(0.0, 0.03 + slope * (cap.sequences - best)))
        seen.append(turned(cap, int(share * answers), answers, TURN_S * number))
    rested = sorted({steps.index(one) for one in seen[60:]})
    assert rested[-1] - rested[0] <= 1
    changes = [one for one in pairwise(seen[60:]) if one[0] != one[1]]
    assert len(changes) <= 2 * 3000 / RETRY_S / 2  # each try takes twice as long as the one before


@given(st.integers(2, 400))
def test_two_minutes_lead_from_no_cap_to_a_seventh_of_it(best: int) -> None:
    maximum = 7 * best
    cap = ClassCap(TARGET, maximum, maximum)
    seen = [turned(cap, 20 if cap.sequences > best else 0, 20, TURN_S * number, peak=maximum) for number in range(12)]
    assert min(seen) <= best


def test_too_few_answers_and_a_cap_that_was_not_reached_move_nothing() -> None:
    cap = ClassCap(TARGET, 64, 32)
    before = cap.sequences
    assert turned(cap, 9, 9, 10.0) == before
    cap = ClassCap(TARGET, 64, 32)
    assert turned(cap, 0, 50, 10.0, peak=before - 1) == before
    assert turned(cap, 6, 50, 20.0) == before  # in time often enough, and not by far
    assert turned(cap, 0, 50, 90.0) > before


@pytest.mark.parametrize(("late", "answers", "moved"), [(3, 20, 1), (4, 20, 0), (12, 30, 0), (13, 30, -1)])
def test_the_bounds_of_what_is_in_time(late: int, answers: int, moved: int) -> None:
    """Of 20 answers 6 may be late, and of 30 nine."""
    cap = ClassCap(ItlTarget(0.05, 0.5), 64, 20)
    assert turned(cap, late, answers, 10.0, peak=20) == levels(64)[levels(64).index(20) + moved]


def test_answers_that_were_placed_before_a_change_do_not_count_after_it() -> None:
    cap = ClassCap(TARGET, 64, 64)
    after = turned(cap, 20, 20, 10.0)
    for _ in range(50):
        cap.ended(LATE, 9.0, 15.0)
    cap.turn(64, 20.0)
    assert cap.sequences == after


def scheduler_of(**itl: ItlTarget) -> Scheduler:
    starts = {name: replace(target, starts={DEFAULT_GROUP: 8}) for name, target in itl.items() if name == "interactive"}
    scheduler = Scheduler(replace(POLICY, itl=itl | starts, max_waiting=1_000))
    scheduler.replica_up("r0", CAPACITY, 0.0)
    return scheduler


def stats_of(scheduler: Scheduler, now: float) -> ReplicaStats:
    return scheduler.snapshot(now).replicas[0]


def test_a_capped_replica_keeps_waiting_what_would_have_fitted_and_says_why() -> None:
    scheduler = scheduler_of(interactive=TARGET)
    for number in range(9):
        admission = scheduler.submit(make_request(f"q{number}", 10, 10), 0.0)
        for placement in scheduler.step(0.0).placements:
            scheduler.first_token(placement.lease, 0.0)
    assert (len(scheduler.leases), admission.waits_for) == (8, WaitReason.ITL)
    assert scheduler.head_waits() == (("short", WaitReason.ITL),)
    stats = stats_of(scheduler, 0.0)
    assert (stats.max_sequences, stats.itl_class) == (8, "interactive")


def test_only_so_many_prompts_prefill_at_once() -> None:
    scheduler = scheduler_of(interactive=TARGET)
    for name in ("a", "b"):
        scheduler.submit(make_request(name, 10, 10), 0.0)
    (first,) = scheduler.step(0.0).placements
    scheduler.first_token(first.lease, 0.1)
    assert len(scheduler.step(0.1).placements) == 1


def test_the_strictest_class_of_the_last_minute_counts() -> None:
    scheduler = scheduler_of(interactive=TARGET, batch=OTHER)
    assert stats_of(scheduler, 0.0).itl_class is None
    for name, of_class, now in (("a", "batch", 0.0), ("b", "interactive", 1.0)):
        scheduler.submit(replace(make_request(name, 10, 10), traffic_class=of_class), now)
        (placed,) = scheduler.step(now).placements
        scheduler.first_token(placed.lease, now)
    assert stats_of(scheduler, 1.0).itl_class == "interactive"
    scheduler.release(placed.lease, Ending.FINISHED, None, 20.0)
    scheduler.step(50.0)
    assert stats_of(scheduler, 50.0).itl_class == "interactive"
    scheduler.step(75.0)
    assert stats_of(scheduler, 75.0).itl_class is None  # batch has no cap yet: nothing was late
    assert stats_of(scheduler, 75.0).max_sequences == 64


@pytest.mark.parametrize(("output_tokens", "lowers"), [(4, False), (6, True)])
def test_an_answer_says_something_where_a_second_token_came_to_each_of_its_sequences(
    output_tokens: int, lowers: bool
) -> None:
    cap = ItlCap({"strict": TARGET}, 64, {"strict": 64})
    request = replace(make_request("q", 10, 11), traffic_class="strict")
    lease = Lease(0, request, "r0", 1.0, 1, 10, 21, 11, 0)
    cap.began(lease, 1)
    for _ in range(30):
        cap.ended(lease, Usage(10, 0, output_tokens, 0, 4, 0.01, 10.0), 1.0)
    cap.turn([lease], 64, 10.0)
    assert (cap.caps["strict"].sequences < 64) is lowers


def test_late_answers_of_a_class_beside_a_stricter_one_leave_its_own_cap() -> None:
    cap = ItlCap({"strict": TARGET, "loose": OTHER}, 64, {"strict": 64, "loose": 64})

    def lease(of_class: str, now: float) -> Lease:
        return Lease(0, replace(make_request("q", 10, 11), traffic_class=of_class), "r0", now, 1, 10, 21, 11, 0)

    for now in (1.0, 61.0):
        leases = [lease("loose", now), lease("strict", now)]
        for number, one in enumerate(leases, 1):
            cap.began(one, number)
        for _ in range(30):
            cap.ended(leases[0], Usage(10, 0, 11, 0, 1, 0.01, 10.0), now)
        cap.turn(leases, 64, now + 9.0)
    cap.turn([lease("loose", 1.0)], 64, 200.0)
    assert (cap.traffic_class, cap.caps["loose"].sequences) == ("loose", 64)


def test_late_answers_lower_the_cap_and_a_new_replica_begins_with_it() -> None:
    scheduler = scheduler_of(interactive=TARGET)
    for number in range(40):
        now = 0.5 * number
        scheduler.submit(make_request(f"q{number}", 10, 10, now), now)
        (placed,) = scheduler.step(now).placements
        scheduler.first_token(placed.lease, now)
        scheduler.release(placed.lease, Ending.FINISHED, Usage(10, 0, 11, 0, 1, 0.01, 10 * LATE), now + 0.4)
    lowered = stats_of(scheduler, 20.0).max_sequences
    assert lowered < 8
    scheduler.replica_up("r1", CAPACITY, 20.0)
    scheduler.submit(make_request("x", 10, 10, 20.0), 20.0)
    scheduler.step(20.0)
    scheduler.submit(make_request("y", 10, 10, 20.0), 20.0)
    scheduler.step(20.0)
    assert {one.max_sequences for one in scheduler.snapshot(20.0).replicas} == {lowered}


@pytest.mark.whole
def test_a_recorded_scheduler_with_caps_replays() -> None:
    entries: list[Entry] = []
    policy = replace(POLICY, itl={"interactive": replace(TARGET, starts={DEFAULT_GROUP: 12})}, max_waiting=1_000)
    scheduler = RecordingScheduler(policy, entries.append)
    scheduler.begin(0.0)
    scheduler.configure(policy, 0.0)
    scheduler.replica_up("r0", CAPACITY, 0.0)
    for number in range(400):
        now = 0.25 * number
        if number == 200:
            scheduler.begin(now)
        scheduler.submit(make_request(f"q{number}", 10, 10, now), now)
        for placement in scheduler.step(now).placements:
            scheduler.first_token(placement.lease, now)
        if number % 2 and scheduler.leases:
            lease = next(iter(scheduler.leases.values()))[0]
            itl_s = LATE if len(scheduler.leases) > 6 else IN_TIME
            scheduler.release(lease, Ending.FINISHED, Usage(10, 0, 11, 0, 1, 0.01, 10 * itl_s), now)
    assert stats_of(scheduler, 100.0).max_sequences < 12
    for begin in (number for number, entry in enumerate(entries) if isinstance(entry, Header)):
        replayed = replay(entries[begin:], (SCHEDULING,))
        assert (replayed.difference, replayed.counted > 50) == (None, True)


def test_a_spec_that_names_no_itl_ms_any_more_lifts_the_cap() -> None:
    scheduler = scheduler_of(interactive=TARGET)
    scheduler.submit(make_request("a", 10, 10), 0.0)
    scheduler.step(0.0)
    scheduler.configure(POLICY, 1.0)
    assert (stats_of(scheduler, 1.0).max_sequences, stats_of(scheduler, 1.0).itl_class) == (64, None)
