"""Start-time fair queueing, step by step, as `FairClock` states it."""

from deployments.scheduling.fair import FairClock, FairFlow
from deployments.scheduling.outlook import work_before


def test_a_served_flow_finishes_by_its_cost_over_its_weight() -> None:
    clock, flow = FairClock(), FairFlow(0.5)
    clock.charge(flow, 10.0)
    assert (clock.virtual, flow.start, flow.finish) == (0.0, 20.0, 20.0)
    clock.charge(flow, 5.0)
    assert (clock.virtual, flow.start, flow.finish) == (20.0, 30.0, 30.0)


def test_virtual_time_never_runs_backwards() -> None:
    clock, early, late = FairClock(), FairFlow(1.0), FairFlow(1.0)
    late.start = 50.0
    clock.charge(late, 1.0)
    clock.charge(early, 1.0)
    assert (clock.virtual, early.finish) == (50.0, 1.0)


def test_idleness_earns_nothing_and_past_service_is_not_forgotten() -> None:
    clock, idle, busy = FairClock(), FairFlow(1.0), FairFlow(1.0)
    clock.virtual = 30.0
    idle.finish, busy.finish = 10.0, 70.0
    for flow in (idle, busy):
        clock.activate(flow)
    assert (idle.start, busy.start) == (30.0, 70.0)


def test_a_flow_that_was_passed_over_keeps_one_request_and_no_more() -> None:
    clock, long_ago, just_now = FairClock(), FairFlow(0.5), FairFlow(0.5)
    clock.virtual = 100.0
    long_ago.start, just_now.start = 10.0, 90.0
    for flow in (long_ago, just_now):
        clock.passed_over(flow, 20.0)
    assert (long_ago.start, just_now.start) == (60.0, 90.0)


def test_work_before_ones_own_is_what_others_are_served_meanwhile() -> None:
    assert work_before(60.0, 0.6, []) == 60.0
    assert work_before(60.0, 0.6, [(1_000.0, 0.3), (5.0, 0.1)]) == 60.0 + 30.0 + 5.0
    assert work_before(0.0, 0.6, [(1_000.0, 0.3)]) == 0.0
