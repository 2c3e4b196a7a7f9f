import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.policies.backlog.trend import slope


def test_an_even_climb_is_a_trend() -> None:
    assert slope([10.0 + 2.0 * index for index in range(24)], variance=1.0) == pytest.approx(2.0)


@pytest.mark.parametrize("at", [4, 12, 20])
def test_a_step_is_none_wherever_it_happened(at: int) -> None:
    assert slope([10.0] * at + [60.0] * (24 - at), variance=1.0) == 0.0


def test_noise_is_none() -> None:
    rng = np.random.default_rng(1)
    assert [slope(rng.normal(50.0, 5.0, 48).tolist(), variance=25.0) for _ in range(50)] == [0.0] * 50


@given(st.lists(st.floats(0, 1e6), min_size=6, max_size=48), st.floats(1e-3, 1e6))
def test_what_falls_is_what_climbs_turned_round(x: list[float], variance: float) -> None:
    assert slope(x[::-1], variance) == pytest.approx(-slope(x, variance), rel=1e-6, abs=1e-6)
