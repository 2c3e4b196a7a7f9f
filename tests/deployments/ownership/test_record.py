"""The table of records: what is news, what is remembered, the counts, and what is left where an owner or a client
goes."""

import pytest

from deployments.ownership import record as module
from deployments.ownership.record import OVER, Records, RequestState, split
from deployments.scheduling import Lease, Request
from tests.deployments.ownership.lane_owner_rig import Submitter

S = RequestState
REQUEST = Request("q", 70, 30, 0.0, 5.0, 60.0)


def lease(attempt: int = 1) -> Lease:
    return Lease(9, REQUEST, "r1", 0.0, attempt, 70, 100, 30, 0)


def test_only_a_later_attempt_of_what_is_over_is_news() -> None:
    assert Records().is_news("q", 1)
    for state in S:
        table = Records()
        table.begin("q", 3, state, None, lease(3))
        assert [table.is_news("q", attempt) for attempt in (2, 3, 4)] == [False, False, state in OVER]


def test_attempts_and_states_only_go_where_the_table_says() -> None:
    table = Records()
    record = table.begin("q", 2, S.WAITING, Submitter())
    with pytest.raises(AssertionError, match=r"^q-2: waiting -> ended$"):
        table.move(record, S.ENDED)
    table.move(record, S.CLOSED)
    with pytest.raises(AssertionError, match=r"^q: attempt 1 after 2$"):
        table.begin("q", 1, S.WAITING)


def known(table: Records, *names: str) -> list[str]:
    return [name for name in names if table.get(name) is not None]


def test_the_last_that_ended_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    table = Records()
    names = [f"q{number}" for number in range(7)]
    for name in names[:4]:
        table.begin(name, 1, S.CLOSED)
    assert known(table, *names) == ["q1", "q2", "q3"]
    revived = table.begin("q1", 1, S.WAITING)
    table.begin("q4", 1, S.CLOSED)
    assert table.get("q1") is revived, "what waits again is not forgotten for what it was"
    table.move(revived, S.RUNNING, lease(2))
    table.move(revived, S.ENDED)
    assert (revived.submitter, revived.admission) == (None, None), "nobody is told any more"
    table.begin("q5", 1, S.CLOSED)
    table.move(revived, S.CLOSED)  # ends once, before q5
    table.begin("q6", 1, S.CLOSED)
    assert known(table, *names) == ["q1", "q5", "q6"]
    table.begin("q5", 2, S.CLOSED)
    table.begin("q3", 1, S.CLOSED)
    assert known(table, *names) == ["q3", "q5", "q6"], "its later attempt ended last"
    assert (+table.counts, [*table]) == ({S.CLOSED: 3}, [])


async def test_a_client_keeps_its_record_until_it_has_noticed_the_end() -> None:
    table = Records()
    record = table.enter(REQUEST, Submitter())
    table.begin("q", 0, S.WAITING, record.submitter)
    table.move(record, S.RUNNING, lease())
    table.move(record, S.CLOSED)
    assert (table.client_of("q"), table.holder_of(lease()), table.holder_of(lease(2))) == (record, record, None)
    assert table.lost.broken == 1
    record.await_placement(REQUEST)
    assert record.placement is not None
    record.placement.set_exception(TimeoutError())
    assert table.holder_of(lease()) is None, "another placement was refused: its client is to hear it"
    table.leave(record)
    assert ([*table], +table.counts, table.lost.broken) == ([], {S.CLOSED: 1}, 0)


async def test_the_end_of_an_owner_leaves_the_clients_here_and_the_numbers_of_attempts() -> None:
    table = Records()
    table.enter(REQUEST, Submitter())
    table.begin("theirs", 1, S.RUNNING, Submitter(), lease())
    table.move(table.begin("ended", 3, S.RUNNING, Submitter(), lease(3)), S.ENDED)
    table.end_ownership()
    assert [record.request_id for record in table] == ["q"]
    assert +table.counts == {S.UNOWNED: 1, S.CLOSED: 1}
    assert not table.is_news("ended", 3)


@pytest.mark.parametrize(
    ("attempt_id", "named"),
    [
        ("q-1", ("q", 1)),
        ("a-b-12", ("a-b", 12)),
        *((name, None) for name in ("q-", "-1", "q", "q-x", "q-²", "q-٣", "")),
    ],
)
def test_an_engines_id_names_request_and_attempt(attempt_id: str, named: tuple[str, int] | None) -> None:
    assert split(attempt_id) == named
