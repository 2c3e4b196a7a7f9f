"""Every decision on the number of replicas is the recorded one (`write.py` says when it may be recorded anew)."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from tests.recorded.files import SCALING, compared, recorded
from tests.recorded.scaling_adapter import decided

IN_SHORT = 500
EXPECTED = (
    *("steady", "backlog", "demand", "forecast", "wake", "consolidate", "idle", "cooling", "min_replicas"),
    *("max_replicas", "cost_ceiling", "unschedulable", "up_rate", "down_rate", "held", "pinned", "stale", "silent"),
    "forecast_failed",
)


def replay(entries: Iterable[dict[str, Any]]) -> Counter[str]:
    """Returns how often there was which reason."""
    return Counter(entry["decision"]["reason"] for entry in compared(entries, decided) if "decision" in entry)


def test_the_number_of_replicas_is_decided_as_recorded_in_short() -> None:
    assert replay(islice(recorded(SCALING), IN_SHORT)).total() > 0.9 * IN_SHORT


@pytest.mark.whole
def test_the_number_of_replicas_is_decided_as_recorded() -> None:
    reasons = replay(recorded(SCALING))
    assert reasons.total() >= 5_000
    assert {name: reasons[name] for name in EXPECTED if not reasons[name]} == {}
