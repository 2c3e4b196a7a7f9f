"""The evidence of each family, the threshold, and how noise is learned."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.drift.detector import MEAN_MINUTES, changes, threshold_of
from planning.drift.dispersion import dispersion
from planning.drift.measures import Direction, DriftQuantity, Family, Measure
from tests.planning.drift.drawn import CHAT

MINUTES = 200


def measure(
    family: Family, observed: np.ndarray, exposure: float, bounds: tuple[float, float, float], **more: float
) -> Measure:
    low, expected, high = (np.full(len(observed), one) for one in bounds)
    exposures = np.full(len(observed), float(exposure))
    return Measure(CHAT, DriftQuantity.RATE, family, observed, exposures, expected, low, high, **more)


def at_the_bound(family: Family, direction: Direction, rng: np.random.Generator) -> Measure:
    """Independent requests whose figure is at the bound: the worst that is no drift."""
    above = direction is Direction.ABOVE
    if family is Family.RATE:
        return measure(family, rng.poisson(60 * (1.25 if above else 0.8), MINUTES).astype(float), 60, (0.8, 1.0, 1.25))
    if family is Family.MEAN:
        mean = 120.0 if above else 80.0
        return measure(family, rng.gamma(30 / 1.5, 1.5 * mean, MINUTES), 30, (80, 100, 120), spread=1.5)
    if family is Family.LOG_MEAN:
        mean = 5.2 if above else 4.8
        return measure(family, rng.normal(30 * mean, math.sqrt(30 * 0.8), MINUTES), 30, (4.8, 5, 5.2), spread=0.8)
    return measure(family, rng.binomial(30, 0.3 if above else 0.1, MINUTES).astype(float), 30, (0.1, 0.2, 0.3))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("family", Family)
def test_evidence_is_a_likelihood_ratio(family: Family, direction: Direction) -> None:
    """The mean of exp(evidence) of independent requests is 1 at the bound, whatever the shift."""
    rng = np.random.default_rng(1)
    found = np.concatenate([at_the_bound(family, direction, rng).evidence(direction)[:, :1] for _ in range(500)])
    assert np.exp(found).mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("family", Family)
def test_at_the_bound_itself_false_alarms_are_as_rare_as_the_threshold_says(
    family: Family, direction: Direction
) -> None:
    """With a threshold for one false alarm in 2,000 minutes, 200 minutes have one with a probability of at most 0.1."""
    rng = np.random.default_rng(2)
    threshold = math.log(2_000)
    runs = [at_the_bound(family, direction, rng) for _ in range(300)]
    alarms = sum(bool(changes(one, direction, np.ones(MINUTES), threshold)) for one in runs)
    assert alarms <= 45  # 30, and three standard deviations


def test_the_threshold_is_for_all_tests_together() -> None:
    assert threshold_of(24) == pytest.approx(math.log(24 * MEAN_MINUTES))
    assert threshold_of(0) == threshold_of(1)


def test_a_share_beyond_zero_or_one_is_no_evidence() -> None:
    hits = np.full(MINUTES, 30.0)
    never = measure(Family.SHARE, hits, 30, (-0.1, 0.95, 1.05))
    assert not never.evidence(Direction.ABOVE).any()
    assert not never.evidence(Direction.BELOW).any()


@given(st.integers(0, 1_000), st.sampled_from([1, 4, 16]))
def test_dispersion_is_learned_from_clusters(seed: int, cluster: int) -> None:
    rng = np.random.default_rng(seed)
    clustered = measure(Family.RATE, cluster * rng.poisson(120 / cluster, 600).astype(float), 60, (1.6, 2.0, 2.5))
    learned = dispersion(clustered)
    assert learned[0] == 3.0
    assert cluster / 2.5 < learned[-1] < max(cluster, 1.5) * 2.5
    assert (learned >= 1).all()


@pytest.mark.parametrize("minutes", [60, 180, 600])
def test_independent_requests_are_not_taken_for_clusters(minutes: int) -> None:
    """The largest of three noisy means would be 1.5 and more on average."""
    rng = np.random.default_rng(4)
    learned = [
        dispersion(measure(Family.LOG_MEAN, rng.normal(18 * 5, math.sqrt(18), minutes), 18, (4.8, 5, 5.2)))[-1]
        for _ in range(60)
    ]
    assert 1 <= float(np.mean(learned)) < 1.3


def test_what_stays_off_for_half_an_hour_is_dispersion() -> None:
    """A level that moves every half hour: minutes alone look independent."""
    rng = np.random.default_rng(5)
    level = np.repeat(rng.normal(5, 0.3, 48), 30)
    logs = measure(Family.LOG_MEAN, rng.normal(18 * level, math.sqrt(18)), 18, (4.8, 5, 5.2))
    assert dispersion(logs)[-1] > 3


def test_a_change_is_not_taken_for_dispersion() -> None:
    rng = np.random.default_rng(1)
    counts = np.concatenate([rng.poisson(120, 300), rng.poisson(360, 300)]).astype(float)
    assert dispersion(measure(Family.RATE, counts, 60, (1.6, 2.0, 2.5))).max() < 4


def test_dispersion_knows_the_past_alone() -> None:
    rng = np.random.default_rng(1)
    counts = rng.poisson(120, 300).astype(float)
    before = dispersion(measure(Family.RATE, counts, 60, (1.6, 2.0, 2.5)))
    counts[200:] *= 9
    after = dispersion(measure(Family.RATE, counts, 60, (1.6, 2.0, 2.5)))
    assert (before[:200] == after[:200]).all()


def test_lengths_of_another_shape_alone_are_no_change() -> None:
    """The logarithms are off, the mean is not."""
    number = np.full(MINUTES, 30.0)
    lengths = measure(Family.MEAN, 30 * 100.0 * np.ones(MINUTES), 30, (80, 100, 120))
    logs = Measure(
        CHAT,
        lengths.quantity,
        Family.LOG_MEAN,
        number * 3,
        number,
        *(np.full(MINUTES, one) for one in (5.0, 4.8, 5.2)),
        0.8,
        lengths,
    )
    assert changes(logs, Direction.BELOW, np.ones(MINUTES), threshold_of(10)) == []
