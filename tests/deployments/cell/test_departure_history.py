"""The book: who ended, what was lost, what came instead; whatever the order in which it was heard of."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.cell import departure_history as module
from deployments.cell.departure import MAX_DIGESTS, Departure, DepartureCause, Ended, Event, Lost, MemberKind, Ready
from deployments.cell.departure_history import DepartureHistory


def ready(who: str, at: float, model: str = "demo", kind: MemberKind = MemberKind.REPLICA) -> Ready:
    return Ready(kind, who, at, model, 7)


def ended(
    who: str,
    at: float,
    cause: DepartureCause = DepartureCause.PROCESS_DIED,
    reported_by: str = "g1",
    lost: Lost | None = None,
    model: str = "demo",
) -> Ended:
    return Ended(MemberKind.REPLICA, who, at, cause, model, 7, reported_by, lost or Lost())


def history_of(*events: Event) -> DepartureHistory:
    history = DepartureHistory()
    for event in events:
        history.take(event)
    return history


def only(history: DepartureHistory) -> Departure:
    (departure,) = history.departures().last
    return departure


def test_what_comes_in_its_place_is_the_next_of_its_model_to_be_ready() -> None:
    history = history_of(
        ready("r1", 1.0),
        ready("r2", 2.0),
        ended("r1", 10.0),
        ready("x1", 11.0, "other"),
        ready("r3", 19.5),
        ready("r4", 30.0),
    )
    assert (only(history).replaced_by, only(history).ready_unix_s) == ("r3", 19.5)


def test_each_comes_in_one_place_alone() -> None:
    history = history_of(ready("r1", 1.0), ready("r2", 2.0), ended("r1", 10.0), ended("r2", 11.0), ready("r3", 20.0))
    assert [departure.replaced_by for departure in history.departures().last] == ["r3", None]
    history.take(ready("r4", 21.0))
    assert [departure.replaced_by for departure in history.departures().last] == ["r3", "r4"]


def test_a_replacement_may_be_heard_of_before_the_end() -> None:
    assert only(history_of(ready("r1", 1.0), ready("r2", 12.0), ended("r1", 10.0))).replaced_by == "r2"
    assert only(history_of(ready("r1", 1.0), ready("r2", 9.0), ended("r1", 10.0))).replaced_by is None


@given(
    st.permutations(
        [
            ready("r1", 1.0),
            ended("r1", 10.0, lost=Lost(1, 2, 30, ("a",))),
            ended("r1", 10.1, reported_by="g2"),
            ready("r2", 15.0),
        ]
    )
)
def test_the_order_in_which_it_is_heard_of_does_not_matter(events: list[Event]) -> None:
    """But for a beginning that is heard of after the end, which is a return."""
    if events.index(ready("r1", 1.0)) > min(events.index(event) for event in events if isinstance(event, Ended)):
        return
    departure = only(history_of(*events))
    assert (departure.who, departure.cause, departure.lost, departure.replaced_by) == (
        "r1",
        DepartureCause.PROCESS_DIED,
        Lost(1, 2, 30, ("a",)),
        "r2",
    )


@pytest.mark.parametrize(("cause", "next_one"), [(DepartureCause.STOPPED, None), (DepartureCause.DRAINED, "r2")])
def test_nothing_is_awaited_in_the_place_of_what_serve_stopped(cause: DepartureCause, next_one: str | None) -> None:
    assert only(history_of(ready("r1", 1.0), ended("r1", 10.0, cause), ready("r2", 11.0))).replaced_by == next_one


def test_the_first_word_on_the_cause_stands_and_each_tells_its_losses_once() -> None:
    history = history_of(ready("r1", 1.0))
    assert history.take(ended("r1", 10.0, DepartureCause.ENGINE_DIED, "g1", Lost(1, 0, 100, ("a",))))
    assert history.take(ended("r1", 10.2, DepartureCause.UNRESPONSIVE, "g2", Lost(0, 2, 50, ("a", "b"))))
    assert not history.take(ended("r1", 10.0, DepartureCause.ENGINE_DIED, "g1", Lost(1, 0, 100, ("a",))))
    departure = only(history)
    assert (departure.cause, departure.at_unix_s, departure.lost) == (
        DepartureCause.ENGINE_DIED,
        10.0,
        Lost(1, 2, 150, ("a", "b")),
    )
    (tally,) = history.departures().tallies
    assert (tally.count, tally.cause, tally.lost) == (1, DepartureCause.ENGINE_DIED, Lost(1, 2, 150))


def test_one_that_was_given_up_may_come_back_and_end_again() -> None:
    history = history_of(ready("r1", 1.0), ended("r1", 40.0, DepartureCause.UNRESPONSIVE), ready("r1", 45.0))
    assert only(history).back_unix_s == 45.0
    assert not history.take(ready("r1", 47.0)), "it is told that it lives again and again"
    assert not history.take(ended("r1", 40.0, DepartureCause.UNRESPONSIVE)), "an old word, told again"
    history.take(ready("r2", 50.0))
    assert only(history).replaced_by is None
    assert history.take(ended("r1", 60.0, DepartureCause.PROCESS_DIED))
    reported = [(one.at_unix_s, one.cause, one.back_unix_s) for one in history.departures().last]
    assert reported == [(40.0, DepartureCause.UNRESPONSIVE, 45.0), (60.0, DepartureCause.PROCESS_DIED, None)]
    assert sum(tally.count for tally in history.departures().tallies) == 2


def test_what_ended_as_planned_does_not_come_back() -> None:
    history = history_of(ready("r1", 1.0), ended("r1", 10.0, DepartureCause.STOPPED))
    assert not history.take(ready("r1", 10.1)), "a word that was under way"
    assert only(history).back_unix_s is None


def test_the_model_and_the_process_are_known_from_the_beginning() -> None:
    history = history_of(ready("r1", 1.0), Ended(MemberKind.REPLICA, "r1", 10.0, DepartureCause.UNRESPONSIVE))
    assert (only(history).model, only(history).pid) == ("demo", 7)
    assert only(history_of(Ended(MemberKind.REPLICA, "r1", 10.0, DepartureCause.UNRESPONSIVE))).model == ""


def test_those_that_live_are_told_from_those_that_ended() -> None:
    history = history_of(
        ready("g1", 1.0, "", MemberKind.GATEWAY), ready("g2", 1.0, "", MemberKind.GATEWAY), ready("r1", 1.0)
    )
    history.take(Ended(MemberKind.GATEWAY, "g1", 2.0, DepartureCause.PROCESS_DIED))
    assert [one.who for one in history.living(MemberKind.GATEWAY)] == ["g2"]
    assert history.get(MemberKind.GATEWAY, "g2") is None
    assert history.get(MemberKind.GATEWAY, "g1") is not None
    history.take(ready("g1", 3.0, "", MemberKind.GATEWAY))
    assert {one.who for one in history.living(MemberKind.GATEWAY)} == {"g1", "g2"}, "it is back"


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KNOWN", 20)
    history = DepartureHistory()
    for number in range(200):
        history.take(ready(f"r{number}", number))
        history.take(ended(f"r{number}", number + 0.5, lost=Lost(1, 0, 1, (f"d{number}",))))
    assert [departure.who for departure in history.departures().last] == [
        f"r{number}" for number in range(200 - module.KEPT, 200)
    ]
    assert (
        max(len(kept) for kept in (history._known, history._reported_by, history._last, history._spare)) <= module.KEPT
    )
    (tally,) = history.departures().tallies
    assert (tally.count, tally.lost) == (200, Lost(200, 0, 200))


def test_digests_are_bounded_and_told_once() -> None:
    lost = Lost()
    for number in range(100):
        lost = lost.plus(Lost(1, 0, 1, (f"d{number % 50}",)))
    assert lost == replace(Lost(100, 0, 100), digests=tuple(f"d{number}" for number in range(MAX_DIGESTS)))
