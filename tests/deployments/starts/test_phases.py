"""A start's phases are tiles: whatever marks and spans say, each moment is in one phase, and all of it adds up."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.starts.phases import Phase, PhaseMark, Span, corrected, seconds_of, tiled

TIMES = st.floats(0.0, 1_000.0, allow_nan=False)
ENGINES = st.sampled_from([Phase.LOAD, Phase.COMPILE, Phase.GRAPHS])
MARKS = st.lists(st.builds(PhaseMark, st.sampled_from(Phase), TIMES), min_size=1, max_size=12)
SPANS = st.lists(st.builds(Span, ENGINES, TIMES, TIMES | st.just(math.inf)), max_size=12)


@pytest.mark.whole
@given(MARKS, SPANS, TIMES)
def test_phases_add_up_to_the_time_from_the_first_mark_to_the_end(
    marks: list[PhaseMark], spans: list[Span], until_s: float
) -> None:
    begun_s = min(mark.at_s for mark in marks)
    tiles = tiled(marks, spans, until_s)
    seconds = seconds_of(tiles, until_s)
    assert set(seconds) == set(Phase)
    assert min(seconds.values()) >= 0
    assert sum(seconds.values()) == pytest.approx(max(0.0, until_s - begun_s), abs=1e-6)
    assert [tile.at_s for tile in tiles] == sorted(tile.at_s for tile in tiles)
    assert all(one.phase is not other.phase for one, other in itertools.pairwise(tiles))


@pytest.mark.whole
@given(MARKS, SPANS, TIMES, TIMES)
def test_a_time_that_the_engine_reports_moves_seconds_and_adds_none(
    marks: list[PhaseMark], spans: list[Span], until_s: float, reported_s: float
) -> None:
    seconds = seconds_of(tiled(marks, spans, until_s), until_s)
    after = corrected(seconds, Phase.COMPILE, reported_s)
    assert sum(after.values()) == pytest.approx(sum(seconds.values()), abs=1e-6)
    assert min(after.values()) >= 0
    assert seconds[Phase.COMPILE] <= after[Phase.COMPILE] <= max(seconds[Phase.COMPILE], reported_s)


def test_what_the_engine_does_counts_instead_of_waiting_for_it() -> None:
    """Two ranks load; a compilation nests in the warm-up, and a capture in a compilation."""
    marks = [PhaseMark(Phase.ENVIRONMENT, 0.0), PhaseMark(Phase.FETCH, 3.0), PhaseMark(Phase.ENVIRONMENT, 10.0)]
    marks += [PhaseMark(Phase.WARM_UP, 60.0), PhaseMark(Phase.FIRST_TOKEN, 65.0)]
    spans = [
        Span(Phase.LOAD, 14.0, 20.0),
        Span(Phase.LOAD, 15.0, 24.0),
        Span(Phase.COMPILE, 30.0, 45.0),
        Span(Phase.GRAPHS, 40.0, 44.0),
    ]
    tiles = tiled(marks, spans, 66.0)
    assert seconds_of(tiles, 66.0) == {
        Phase.NODE: 0.0,
        Phase.ENVIRONMENT: 3.0 + 4.0,
        Phase.FETCH: 7.0,
        Phase.LOAD: 10.0,
        Phase.COMPILE: 11.0,
        Phase.GRAPHS: 4.0,
        Phase.WARM_UP: 6.0 + 15.0 + 5.0,
        Phase.FIRST_TOKEN: 1.0,
    }
    assert tiled(marks[:3], [Span(Phase.LOAD, 14.0)], 16.0)[-1] == PhaseMark(Phase.LOAD, 14.0)
