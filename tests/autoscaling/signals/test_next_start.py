"""What the next start should take: only the phases that it will go through, by what earlier ones took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.policies.backlog.replicas import StartUps
from autoscaling.signals.signals import NextStart, PastStart, next_start, signals_of
from deployments.scheduling import Snapshot
from deployments.starts.phases import Phase

FIRST = {Phase.NODE: 90.0, Phase.ENVIRONMENT: 10.0, Phase.FETCH: 60.0, Phase.LOAD: 20.0, Phase.COMPILE: 40.0}
LATER = {Phase.NODE: 1.0, Phase.ENVIRONMENT: 10.0, Phase.LOAD: 20.0, Phase.COMPILE: 5.0}
ROOM = ["a"]


def seconds(start: NextStart | None) -> dict[str, float]:
    assert start is not None
    return dict(start.phases)


def test_nothing_is_expected_where_nothing_is_known() -> None:
    assert next_start([], None, ROOM) is None


def test_before_the_first_start_the_spec_says_it() -> None:
    assert seconds(next_start([], FIRST, ROOM)) == {"environment": 10, "fetch": 60, "load": 20, "compile": 40}
    assert seconds(next_start([], FIRST, []))["node"] == 90


def test_a_node_that_has_the_files_starts_without_fetch_and_sooner() -> None:
    past = [PastStart("a", FIRST), PastStart("a", LATER)]
    there = next_start(past, None, ["a", "b"])
    assert seconds(there) == {"node": 1, "environment": 10, "load": 20, "compile": 5}
    elsewhere = next_start(past, None, ["b"])
    assert seconds(elsewhere) == {"node": 1, "environment": 10, "fetch": 60, "load": 20, "compile": 40}
    nowhere = next_start(past, None, [])
    assert seconds(nowhere) == {"node": 90, "environment": 10, "fetch": 60, "load": 20, "compile": 40}


@pytest.mark.whole
@given(
    st.lists(
        st.builds(
            PastStart, st.sampled_from("abc"), st.dictionaries(st.sampled_from(Phase), st.floats(0, 1e4), min_size=1)
        ),
        min_size=1,
        max_size=15,
    ),
    st.lists(st.sampled_from("abcd"), max_size=3),
)
def test_each_phase_is_one_that_was_seen(past: list[PastStart], room: list[str]) -> None:
    found = next_start(past, None, room)
    assert found is not None
    for name, expected in found.phases:
        seen = [start.seconds.get(Phase(name), 0.0) for start in past]
        assert min(seen) - 1e-3 <= expected <= max(seen) + 1e-3
    assert found.seconds == pytest.approx(sum(seconds(found).values()))
    if {start.node_id for start in past} & set(room):
        assert "fetch" not in seconds(found)


EMPTY = Snapshot((), (), 0, 0, 0, 0, {}, {}, None, None, None, 0.0, (), 0, 0.0, 0, 0)


def test_the_learned_start_up_follows_the_phases_that_remain() -> None:
    """After the first start on a node the next one there is expected to be as short as it will be."""
    starts = StartUps(60.0)
    times = [next_start([], FIRST, ROOM), next_start([PastStart("a", FIRST), PastStart("a", LATER)], FIRST, ROOM)]
    expected = []
    for number, start in enumerate([None, *times]):
        starts.look(signals_of(EMPTY, float(number), float(number), 0, {}, next_start=start))
        expected.append(starts.expected_s)
    assert expected == [60.0, 130.0, 36.0]
    starts.assume(2.0)
    starts.look(signals_of(EMPTY, 9.0, 9.0, 0, {}, next_start=times[0]))
    assert starts.expected_s == 260.0


def test_a_running_start_that_takes_longer_counts_at_once() -> None:
    starts = StartUps(60.0)
    start = next_start([PastStart("a", LATER)], None, ROOM)
    for at_s, applied in ((0.0, 0), (1.0, 1), (101.0, 1)):
        starts.look(signals_of(EMPTY, at_s, at_s, applied, {}, next_start=start))
    assert starts.expected_s == 100.0
