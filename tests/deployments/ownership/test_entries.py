"""The owner's table: which states follow which, what is news, what is remembered, and the counts."""

import pytest

from deployments.ownership import entries as module
from deployments.ownership.entries import OVER, Entries, EntryState, split
from deployments.ownership.roles import Channels
from deployments.scheduling import Admission, AdmissionKind, Lease, Placement, Request

S = EntryState


class Nobody:
    """A submitter that hears what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def admitted(self, request_id: str, admission: Admission) -> None:
        self.heard.append("admitted")

    def placed(self, placement: Placement, url: str) -> None:
        self.heard.append("placed")

    def expired(self, request_id: str) -> None:
        self.heard.append("expired")

    def moved(self) -> None:
        self.heard.append("moved")


def lease(attempt: int = 1) -> Lease:
    return Lease(9, Request("q", 70, 30, 0.0, 5.0, 60.0), "r1", 0.0, attempt, 70, 100, 30, 0)


def test_an_end_forgets_the_holder_and_a_close_the_lease_too() -> None:
    table = Entries()
    entry = table.begin("q", 1, S.RUNNING, Nobody(), lease())
    entry.admission = Admission(AdmissionKind.ADMIT, "short")
    table.move(entry, S.ENDED)
    assert (entry.submitter, entry.admission, entry.lease) == (None, None, lease()), "its engine's account is due"
    table.move(entry, S.CLOSED)
    assert entry.lease is None


def test_a_placement_is_the_next_attempt() -> None:
    table = Entries()
    entry = table.begin("q", 0, S.WAITING, Nobody())
    table.place(entry, lease(1))
    assert (entry.state, entry.attempt, entry.lease) == (S.RUNNING, 1, lease(1))
    assert (table.counts[S.WAITING], table.counts[S.RUNNING]) == (0, 1)
    assert table.of_attempt_id("q-1") is entry
    assert (
        table.of_attempt_id("q-2")
        is table.of_attempt_id("q-0")
        is table.of_attempt_id("q")
        is table.of_attempt_id("p-1")
        is None
    )


def test_only_a_later_attempt_of_what_is_over_is_news() -> None:
    table = Entries()
    assert table.is_news("q", 1)
    for state in S:
        table = Entries()
        table.begin("q", 3, state, None, lease(3))
        assert [table.is_news("q", attempt) for attempt in (2, 3, 4)] == [False, False, state in OVER]


def test_a_new_beginning_starts_afresh_and_never_with_an_earlier_attempt() -> None:
    table = Entries()
    entry = table.begin("q", 1, S.RUNNING, Nobody(), lease())
    entry.adopted = entry.answered = True
    table.move(entry, S.CLOSED)
    closed = table.get("q")
    assert closed is not None
    assert (closed.attempt, closed.state, closed.adopted, closed.answered) == (1, S.CLOSED, False, False)
    submitter = Nobody()
    entry = table.begin("q", 2, S.WAITING, submitter)
    assert table.get("q") is entry
    assert (entry.attempt, entry.submitter, entry.lease, entry.adopted, entry.answered) == (
        2,
        submitter,
        None,
        False,
        False,
    )
    assert list(table) == [entry]
    assert table.live == 1
    table.move(entry, S.CLOSED)
    with pytest.raises(AssertionError, match=r"^q: attempt 1 after 2$"):
        table.begin("q", 1, S.WAITING)


def known(table: Entries, *names: str) -> list[str]:
    return [name for name in names if table.get(name) is not None]


def test_the_last_that_ended_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    table = Entries()
    names = [f"q{number}" for number in range(7)]
    for name in names[:4]:
        table.begin(name, 1, S.CLOSED)
    assert known(table, *names) == ["q1", "q2", "q3"]
    assert (table.counts[S.CLOSED], table.live) == (3, 0)
    revived = table.begin("q1", 1, S.WAITING)
    table.begin("q4", 1, S.CLOSED)
    assert table.get("q1") is revived, "what waits again is not forgotten for what it was"
    assert known(table, *names) == ["q1", "q2", "q3", "q4"], "and counts no more among what ended"
    table.place(revived, lease(2))
    table.move(revived, S.ENDED)
    table.begin("q5", 1, S.CLOSED)
    table.move(revived, S.CLOSED)  # ends once, before q5
    table.begin("q6", 1, S.CLOSED)
    assert known(table, *names) == ["q1", "q5", "q6"]
    table.begin("q2", 1, S.CLOSED)
    assert known(table, *names) == ["q2", "q5", "q6"]
    table.begin("q5", 2, S.CLOSED)
    table.begin("q3", 1, S.CLOSED)
    assert known(table, *names) == ["q2", "q3", "q5"], "its later attempt ended last"
    assert (+table.counts, table.live) == ({S.CLOSED: 3}, 0)


def test_what_ended_and_still_waits_for_its_account_is_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    table = Entries()
    for name in ("q0", "q1", "q2"):
        table.move(table.begin(name, 1, S.RUNNING, None, lease()), S.ENDED)
    assert known(table, "q0", "q1", "q2") == ["q1", "q2"]
    assert +table.counts == {S.ENDED: 2}


@pytest.mark.parametrize(
    ("attempt_id", "named"),
    [
        ("q-1", ("q", 1)),
        ("a-b-12", ("a-b", 12)),
        ("q-", None),
        ("-1", None),
        ("q", None),
        ("q-x", None),
        ("q-²", None),
        ("q-٣", None),
        ("", None),
    ],
)
def test_an_engines_id_names_request_and_attempt(attempt_id: str, named: tuple[str, int] | None) -> None:
    assert split(attempt_id) == named


def test_a_gateways_later_channel_ends_the_one_before() -> None:
    channels, submitters = Channels(), [Nobody() for _ in range(4)]
    assert channels.open(submitters[0], "g1", 3)
    assert channels.open(submitters[1], "g2", 1)
    assert not channels.open(submitters[2], "g1", 2), "it was opened before the other and came after it"
    assert channels.open(submitters[3], "g1", 4)
    assert [submitter.heard for submitter in submitters] == [["moved"], [], [], []]
    channels.ended(submitters[3])
    channels.ended(submitters[2])
    assert not channels.open(submitters[2], "g1", 3), "its number is remembered"
    assert channels.open(submitters[0], "g1", 4)
    channels.end_all()
    assert [submitter.heard for submitter in submitters] == [["moved", "moved"], ["moved"], [], []]
