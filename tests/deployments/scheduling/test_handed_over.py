"""Whatever raises inside a step, what it put on the books reaches the shell: in that step, or in the next."""

from collections.abc import Callable
from typing import Any

import pytest

from deployments.scheduling import Scheduler, Step
from tests.deployments.scheduling.world import make_request, make_scheduler, submit_all

Place = Callable[[Scheduler], tuple[Any, str]]
AFTER_A_BIND: dict[str, Place] = {
    "prefixes": lambda scheduler: (scheduler.learned_state.prefixes, "add"),
    "the service rate": lambda scheduler: (scheduler.rate.placed, "add"),
    "the clock of the service rate": lambda scheduler: (scheduler.rate.placed, "run"),
    "forecasts of what was placed": lambda scheduler: (scheduler.forecasts, "placed"),
}
AFTER_AN_END: dict[str, Place] = {
    "limits": lambda scheduler: (scheduler.limits, "end"),
    "the tally": lambda scheduler: (scheduler.tally, "gave_up"),
    "forecasts of who gave up": lambda scheduler: (scheduler.forecasts, "gave_up"),
    "promotion": lambda scheduler: (scheduler.lanes, "promote"),
    "forecasts of the promoted": lambda scheduler: (scheduler.forecasts, "promoted"),
    "outliers": lambda scheduler: (scheduler._outliers, "judge"),
}


class Broken(Exception):
    """What a part of the scheduler raises, once."""


def break_once(part: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part's method raises when it is called first, and does its work from then on."""
    works = getattr(type(part), name)
    broken = []

    def fails(self: Any, *args: Any) -> Any:
        if self is part and not broken:
            broken.append(name)
            raise Broken
        return works(self, *args)

    monkeypatch.setattr(type(part), name, fails)


def steps(scheduler: Scheduler, now: float) -> list[Step]:
    """The first raises, the second hands over."""
    with pytest.raises(Broken):
        scheduler.step(now)
    return [scheduler.step(now), scheduler.step(now)]


@pytest.mark.parametrize("part", AFTER_A_BIND)
def test_no_lease_is_lost_where_something_raises_after_it_was_bound(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(2)
    for number in range(30):
        scheduler.submit(make_request(f"q{number}", prompt=300 if number % 2 else 30, prefix=(1, 2), slo=0.1), 0.0)
    before = set(scheduler.leases)
    break_once(*AFTER_A_BIND[part](scheduler), monkeypatch)
    handed = [placement.lease.lease_id for step in steps(scheduler, 0.5) for placement in step.placements]
    assert handed
    assert len(handed) == len(set(handed)), "each once"
    assert set(handed) == set(scheduler.leases) - before
    assert all(eta.open >= 0 for eta in scheduler.forecasts.etas.values())


@pytest.mark.parametrize("part", AFTER_AN_END)
def test_no_end_of_a_wait_is_lost_where_something_raises_after_it(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(0)
    submit_all(scheduler, 5, "q", patience=1.0)
    break_once(*AFTER_AN_END[part](scheduler), monkeypatch)
    assert [request.request_id for step in steps(scheduler, 1.0) for request in step.expired] == [
        f"q{number}" for number in range(5)
    ]
    assert not scheduler.lanes.jobs


@pytest.mark.parametrize("part", ["limits", "forecasts of who gave up"])
def test_no_one_who_is_turned_away_is_lost_where_something_raises_after_it(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make_scheduler(0)
    submit_all(scheduler, 5, "q", patience=10.0)
    scheduler.expect_replica(60.0, 0.5)
    break_once(*AFTER_AN_END[part](scheduler), monkeypatch)
    assert [gone.request.request_id for step in steps(scheduler, 1.0) for gone in step.turned_away] == [
        f"q{number}" for number in range(5)
    ]
    assert not scheduler.lanes.jobs
