"""Whether advice may rest on the simulator: a known error, of this model, within its bounds."""

import pytest

from deployments.telemetry.published_error import AtLoad, Figure, Published
from planning.tune.advice import judge


def published(ttft: float, capacity: float = 1.0, model: str = "demo", name: str = "ttft/all/p90") -> Published:
    figure = Figure(name=name, live_s=1.0, simulated_s=1.0 + ttft, error=ttft, raw_error=ttft, spread=5.0, bound=0.12)
    at = AtLoad(load=0.9, runs=1, slowness=(1.0,), requests=10, failed=0, figures=(figure,))
    return Published(
        model=model,
        replicas=2,
        costs="measured",
        measured_at="2026-11-20T10:00:00",
        capacity_live=10.0,
        capacity_simulated=10 * capacity,
        loads=(at,),
    )


def test_a_small_known_error_is_no_doubt_and_is_quoted() -> None:
    trust = judge(published(-0.15, 1.05), "demo")
    assert trust.doubts == ()
    assert trust.error == "TTFT p90 -15.0% at 0.9 x capacity; capacity +5.0%; rehearsed 2026-11-20 on 2 replica(s)"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (None, "no published error"),
        (published(0.25), "TTFT p90 at 0.9 x capacity is off by +25.0%; allowed: 20%"),
        (published(-0.25), "off by -25.0%"),
        (published(0.0, 0.8), "the capacity is off by -20.0%; allowed: 10%"),
        (published(0.0, model="other"), "of model 'other', not of 'demo'"),
        (published(0.0, name="itl/p50"), "no figure 'ttft/all/p90'"),
    ],
)
def test_doubts_are_named_with_what_is_allowed(known: Published | None, said: str) -> None:
    assert any(said in doubt for doubt in judge(known, "demo").doubts)
