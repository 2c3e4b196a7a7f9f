"""Frontiers: nothing beaten stands on them, and the pick does."""

from hypothesis import given
from hypothesis import strategies as st

from planning.gauntlet.frontier import TriedSettings, floor_of, frontier, non_dominated, pick

points = st.builds(
    TriedSettings,
    st.just({}),
    st.floats(0, 1).map(lambda x: round(x, 3)),
    st.floats(0.1, 9).map(lambda x: round(x, 2)),
    st.sampled_from([0.0, 0.5]),
)
many = st.lists(points, min_size=1, max_size=30)


def beats(one: TriedSettings, other: TriedSettings) -> bool:
    at_least = one.attainment >= other.attainment and one.replica_hours <= other.replica_hours
    return at_least and (one.attainment, one.replica_hours) != (other.attainment, other.replica_hours)


@given(many)
def test_what_is_not_beaten_stays_and_nothing_else(tried: list[TriedSettings]) -> None:
    kept = non_dominated(tried)
    assert not any(beats(one, other) for one in tried for other in kept)
    for one in tried:
        assert any(
            (other.attainment, other.replica_hours) == (one.attainment, one.replica_hours) or beats(other, one)
            for other in kept
        )


@given(many, st.sampled_from([0.5, 0.9, 0.99]), st.integers(1, 5))
def test_a_frontier_is_short_ascends_and_holds_the_pick(
    tried: list[TriedSettings], target: float, maximum: int
) -> None:
    chosen = frontier(tried, target, maximum)
    assert 1 <= len(chosen) <= maximum
    picked = pick(tried, target)
    assert picked in chosen
    assert pick(chosen, target) == picked
    hours, attained = [one.replica_hours for one in chosen], [one.attainment for one in chosen if one != picked]
    assert hours == sorted(hours)
    assert attained == sorted(attained)
    if max(one.attainment for one in tried) >= floor_of(target):
        assert min(one.attainment for one in chosen) >= floor_of(target)


def test_the_pick_is_the_cheapest_with_something_to_spare() -> None:
    tried = [TriedSettings({}, 0.991, 1.0), TriedSettings({}, 0.994, 2.0), TriedSettings({}, 1.0, 3.0)]
    assert pick(tried, 0.99).replica_hours == 2.0
    assert pick(tried[:1], 0.99).replica_hours == 1.0


def test_what_flaps_is_not_picked_where_little_more_meets_the_slo_calmly() -> None:
    flapping, calm = TriedSettings({}, 1.0, 1.0, flaps=0.5), TriedSettings({}, 0.999, 1.05)
    assert pick([flapping, calm], 0.99) is calm
    assert pick([flapping, TriedSettings({}, 1.0, 1.2)], 0.99) is flapping
    assert pick([flapping, TriedSettings({}, 0.9, 0.5)], 0.99) is flapping
    assert frontier([flapping, calm], 0.99, 2) == [flapping, calm]


def test_the_floor_is_below_the_slo() -> None:
    assert 0.95 < floor_of(0.99) < 0.99
    assert 0.2 < floor_of(0.5) < 0.5
