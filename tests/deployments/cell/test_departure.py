"""The lines that are written down of lives: they give the same events back, and what is none of them is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.cell.departure import DepartureCause, Ended, Event, Lost, MemberKind, Ready, line_of, read_event

texts = st.text(max_size=8)
counts = st.integers(0, 10**9)
times = st.floats(1.0, 4e9)
losts = st.builds(Lost, counts, counts, counts, st.lists(texts, max_size=3).map(tuple))
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Ready, st.sampled_from(MemberKind), texts, times, texts, counts),
    st.builds(
        Ended,
        st.sampled_from(MemberKind),
        texts,
        times,
        st.sampled_from(DepartureCause),
        texts,
        counts,
        texts,
        losts,
        texts,
    ),
)


@given(events)
def test_a_line_gives_its_event_back(event: Event) -> None:
    if event.who:
        assert read_event(line_of(event)) == event


def test_a_line_says_whether_an_end_was_planned() -> None:
    planned = {
        cause: json.loads(line_of(Ended(MemberKind.REPLICA, "r", 1.0, cause)))["planned"] for cause in DepartureCause
    }
    assert [cause for cause in DepartureCause if planned[cause]] == [
        DepartureCause.STOPPED,
        DepartureCause.DRAINED,
        DepartureCause.SPOT_NOTICE,
    ]


BAD = [
    "",
    "[]",
    "7",
    '{"event":"ready"}',
    '{"event":"born","kind":"replica","who":"r","at_unix_s":1}',
    '{"event":"ready","kind":"toaster","who":"r","at_unix_s":1}',
    '{"event":"ready","kind":"replica","who":1,"at_unix_s":1}',
    '{"event":"ready","kind":"replica","who":"r","at_unix_s":"now"}',
    '{"event":"ended","kind":"replica","who":"r","at_unix_s":1,"cause":"boredom"}',
    '{"event":"ended","kind":"replica","who":"r","at_unix_s":1,"cause":"silent","lost":{"broken":-1}}',
    '{"event":"ended","kind":"replica","who":"r","at_unix_s":1,"cause":"silent","lost":{"digests":[7]}}',
    '{"event":"ended","kind":"replica","who":"r","at_unix_s":1,"cause":"silent","lost":[]}',
    '{"event":"ended","kind":"replica","who":"r","at_unix_s":1,"cause":"silent","more":1}',
]


@pytest.mark.parametrize("line", BAD)
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not an event|Expecting|allowed|is not a valid"):
        read_event(line)
