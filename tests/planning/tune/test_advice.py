"""Whether advice may rest on the simulator: a known error, of this model, within its bounds."""

import pytest

from deployments.telemetry.published_error import Published
from planning.tune.advice import judge
from tests.planning.tune.cases import known_error


def test_a_small_known_error_is_no_doubt_and_is_quoted() -> None:
    trust = judge(known_error(-0.15, 1.05), "demo")
    assert trust.doubts == ()
    assert trust.error == "TTFT p90 -15.0% at 0.9 x capacity; capacity +5.0%; rehearsed 2026-11-20 on 2 replica(s)"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (None, "no published error"),
        (known_error(0.25), "TTFT p90 at 0.9 x capacity is off by +25.0%; allowed: 20%"),
        (known_error(-0.25), "off by -25.0%"),
        (known_error(0.0, 0.8), "the capacity is off by -20.0%; allowed: 10%"),
        (known_error(0.0, model="other"), "of model 'other', not of 'demo'"),
        (known_error(0.0, name="itl/p50"), "no figure 'ttft/all/p90'"),
    ],
)
def test_doubts_are_named_with_what_is_allowed(known: Published | None, said: str) -> None:
    assert any(said in doubt for doubt in judge(known, "demo").doubts)
