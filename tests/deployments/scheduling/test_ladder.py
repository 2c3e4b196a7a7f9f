"""The ladder: its steps come into force in their order, go in the reverse, and never to and fro; and what they do to
requests."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.scheduling import AdmissionKind, Ending, LadderMode, LadderOrder, RejectCause, Rung, Scheduler, Usage
from deployments.scheduling.ladder import AGAIN_S, CLIMB_S, DOWN_S, HOLD_S, ClassCounts, Ladder, LadderStep
from tests.deployments.scheduling.world import POLICY, make_request, make_scheduler

STEPS = (
    LadderStep(Rung.CLAMP, "b", 20),
    LadderStep(Rung.FALLBACK, "b"),
    LadderStep(Rung.SHED, "b"),
    LadderStep(Rung.SHED, "c"),
)
ALLOWED = {"a": 0.01, "b": 0.1, "c": 0.1}
ALL = tuple(Rung)
SECOND = st.tuples(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=3),
    st.integers(0, 4),
    st.floats(0.3, 3.0),
)
ORDER = st.builds(LadderOrder, st.sampled_from(LadderMode), st.sampled_from(["", "clamp:b", "shed:c", "gone:x"]))


def ladder(slo_s: float = 1.0) -> tuple[Ladder, dict[str, ClassCounts]]:
    made = Ladder()
    made.configure(STEPS, ALLOWED)
    return made, {name: ClassCounts(slo_s=slo_s) for name in ALLOWED}


def second(
    made: Ladder, counts: dict[str, ClassCounts], came: dict[str, tuple[int, int]], now: float, ready: int = 1
) -> None:
    """In each class so many came in time and so many late, and as many met and missed their SLO."""
    for name, (good, late) in came.items():
        for number in range(good + late):
            made.came(name, number < late)
        before = counts[name]
        sums = before.met + good, before.missed + late, before.work + 100.0 * (good + late)
        counts[name] = replace(before, met=sums[0], missed=sums[1], work=sums[2])
    made.turn(counts, ready, now)


@pytest.mark.whole
@given(st.lists(st.one_of(SECOND, ORDER), max_size=150))
def test_steps_come_in_order_and_not_to_and_fro(events: list[object]) -> None:
    made, counts = ladder()
    now, order, moved, late_s = 0.0, LadderOrder(), -1e9, -1e9
    fired: dict[int, float] = {}
    for event in events:
        before = made.at
        if isinstance(event, LadderOrder):
            order = event
            made.order(order, now)
            names = ["", *(one.name for one in STEPS)]
            if order.step in names:
                end = names.index(order.step)
                assert order.mode is not LadderMode.AT or made.at == end
                assert order.mode is not LadderMode.AT_MOST or made.at <= end
            if made.at != before:
                moved = now
                fired |= dict.fromkeys(range(before + 1, made.at + 1), now)
            continue
        assert isinstance(event, tuple)
        came, ready, passed_s = event
        now += passed_s
        late_s = now if any(late for _, late in came.values()) else late_s
        second(made, counts, came, now, ready)
        assert abs(made.at - before) <= 1
        if made.at != before:
            assert order.mode is not LadderMode.AT or order.step == "gone:x"
            assert now - moved >= (CLIMB_S if made.at > before else DOWN_S)
            moved = now
        if made.at > before:
            assert now - late_s < 15.0, "only under pressure"
            assert now - fired.get(made.at, -1e9) >= AGAIN_S
            fired[made.at] = now
        wakeup = made.next_wakeup()
        assert (wakeup is None) is (made.at == 0)
        assert wakeup is None or wakeup > now


@pytest.mark.whole
@given(st.integers(1, 20), st.integers(1, 4), st.integers(60, 600))
def test_what_is_in_time_needs_no_ladder(per_s: int, ready: int, seconds: int) -> None:
    made, counts = ladder()
    for now in range(seconds):
        second(made, counts, dict.fromkeys(ALLOWED, (per_s, 0)), float(now), ready)
        assert made.at == 0


def test_a_class_is_not_shed_for_its_own_sake() -> None:
    made, counts = ladder()
    for now in range(120):
        second(made, counts, {"a": (5, 0), "b": (0, 5)}, float(now))
    assert made.at == 2, "clamped and sent elsewhere, but shed only for the sake of others"
    for now in range(120, 240):
        second(made, counts, {"a": (0, 5)}, float(now))
    assert made.at == 4


def test_it_ends_with_the_load_and_is_tried_while_that_lasts() -> None:
    made, counts = ladder()
    for now in range(10):
        second(made, counts, {"a": (0, 20)}, float(now))
    assert made.at == 4
    steps = []
    for now in range(10, 900):
        second(made, counts, {"a": (20, 0)}, float(now))
        steps.append(made.at)
    assert steps[60] == 4, "nothing is pressed because of the steps that are in force"
    assert [before - after for before, after in pairwise(steps) if before != after] == [1] * 4
    assert steps.index(3) + 100 < steps.index(2), "one after another, each for a while"
    for now in range(10, 20):
        second(made, counts, {"a": (0, 20)}, float(900 + now))
    assert made.at == 4
    for now in range(1_000, 1_090):
        second(made, counts, {"a": (5, 0)}, float(now))
    assert made.at == 0, "a quarter of the load is left"


def test_the_last_step_holds_for_its_own_time_not_for_that_of_the_one_before() -> None:
    made, counts = ladder()
    made.order(LadderOrder(LadderMode.AT_MOST, "clamp:b"), 0.0)
    for now in range(60):
        second(made, counts, {"a": (0, 20)}, float(now))
    made.order(LadderOrder(LadderMode.AT_MOST, "fallback:b"), 60.0)
    now = 60
    while made.at == 1:
        second(made, counts, {"a": (0, 20)}, float(now))
        now += 1
    fired = now - 1
    while made.at == 2:
        second(made, counts, {}, float(now))
        now += 1
    assert (made.at, now - 1 - fired) == (1, HOLD_S)


def test_more_replicas_relieve_as_less_traffic_does() -> None:
    made, counts = ladder()
    for now in range(70):
        second(made, counts, {"a": (0, 20) if now < 10 else (20, 0)}, float(now), ready=1 if now < 10 else 20)
    assert made.at < 4


def ask(name: str, traffic_class: str = "b", rungs: tuple[Rung, ...] = ALL, output: int | None = 50) -> object:
    return replace(make_request(name, output=output), traffic_class=traffic_class, rungs=rungs)


def at(step: str) -> Scheduler:
    scheduler = make_scheduler(policy=replace(POLICY, ladder=STEPS, allowed=ALLOWED))
    scheduler.order_ladder(LadderOrder(LadderMode.AT, step), 0.0)
    return scheduler


def test_a_clamp_lowers_the_bound_and_nothing_else() -> None:
    scheduler, plain = at("clamp:b"), make_scheduler()
    for one in (scheduler, plain):
        assert one.submit(ask("q"), 0.0).kind is AdmissionKind.ADMIT  # type: ignore[arg-type]
    (clamped,), (whole,) = scheduler.step(0.0).placements, plain.step(0.0).placements
    assert (clamped.request.max_tokens, clamped.request.clamped, clamped.lease.output_tokens) == (20, True, 20)
    assert whole.lease.output_tokens == 50
    flows = [sum(flow.work for flow in one.snapshot(0.0).flows) for one in (scheduler, plain)]
    assert flows[0] == flows[1], "what came counts whole as demand"
    for one, lease in ((scheduler, clamped.lease), (plain, whole.lease)):
        one.release(lease, Ending.FINISHED, Usage(100, 0, 20, 0), 1.0)
    assert (scheduler.snapshot(1.0).counted, plain.snapshot(1.0).counted) == (0, 1)
    for request in (ask("other", "c"), ask("spared", rungs=(Rung.SHED,)), ask("short", output=10)):
        scheduler.submit(request, 2.0)  # type: ignore[arg-type]
    assert not any(one.request.clamped for one in scheduler.step(2.0).placements)
    stats = scheduler.snapshot(2.0).ladder
    assert stats is not None
    assert (stats.at, stats.touched) == (1, {"clamp:b": 1})


def test_a_step_sends_elsewhere_or_sheds() -> None:
    scheduler = at("fallback:b")
    assert scheduler.submit(ask("q"), 0.0).cause is RejectCause.LADDER  # type: ignore[arg-type]
    assert scheduler.submit(ask("r", rungs=(Rung.SHED,)), 0.0).accepted  # type: ignore[arg-type]
    scheduler = at("shed:b")
    shed = scheduler.submit(ask("q", rungs=(Rung.SHED,)), 0.0)  # type: ignore[arg-type]
    assert (shed.cause, shed.retry_after_s is not None) == (RejectCause.SHED, True)
    assert scheduler.submit(ask("spared", rungs=()), 0.0).accepted  # type: ignore[arg-type]
    assert scheduler.submit(ask("c", "c"), 0.0).accepted  # type: ignore[arg-type]
    assert sum(flow.arrived for flow in scheduler.snapshot(0.0).flows) == 3
    scheduler.order_ladder(LadderOrder(), 1.0)
    assert scheduler.ladder.at == 3, "left to itself from where it is"
    scheduler.configure(POLICY, 2.0)
    assert (scheduler.ladder.at, scheduler.snapshot(2.0).ladder) == (0, None)
