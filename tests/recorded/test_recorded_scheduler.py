"""Every decision of the scheduler is the recorded one (`write.py` says when it may be recorded anew)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from tests.recorded.files import SCHEDULER, compared, recorded
from tests.recorded.scheduler_adapter import decided

IN_SHORT = 2_000
FEW = 3
"""Of a kind that is seen less often than this, the recording shows too little."""


def replay(entries: Iterable[dict[str, Any]]) -> Counter[str]:
    """Returns how often there was what."""
    seen: Counter[str] = Counter()
    for entry in compared(entries, decided):
        if "begins" in entry:
            seen["schedulers"] += 1
        else:
            seen.update(["inputs", entry["input"], *facts(entry["input"], entry["with"], entry["decision"])])
    return seen


def facts(name: str, given: dict[str, Any], decision: Any) -> Iterator[str]:
    """What an entry shows, for a recording that shows less than it should to be noticed."""
    if name == "submit":
        yield decision["cause"] or decision["kind"]
    elif name == "release":
        yield given["ending"]
    elif name == "step":
        for placed in decision.get("placed", ()):
            yield placed["reason"]
            if placed["promoted"]:
                yield "promoted"
        yield from ("expired" for _ in decision.get("expired", ()))
        yield from (f"away: {admission['cause']}" for _, admission in decision.get("turned_away", ()))
        yield from (f"deaths: {deaths}" for _, deaths, *_ in decision.get("suspects", ()))


def test_the_scheduler_decides_as_recorded_in_short() -> None:
    seen = replay(islice(recorded(SCHEDULER), IN_SHORT))
    assert seen["inputs"] > 0.9 * IN_SHORT


@pytest.mark.whole
def test_the_scheduler_decides_as_recorded() -> None:
    seen = replay(recorded(SCHEDULER))
    assert seen["inputs"] >= 50_000
    assert {name: seen[name] for name in EXPECTED if seen[name] < FEW} == {}


EXPECTED = (
    *("submit", "cancel", "first_token", "release", "learn", "adopt", "died_under", "recall_suspect", "reload"),
    *("snapshot", "schedulers", "replica_ready", "replica_silent", "replica_draining", "replica_cordoned"),
    *("replica_uncordoned", "replica_gone", "replica_expected", "admit", "queue", "lane_full", "model_full"),
    *("duplicate_id", "tenant_requests", "tenant_tokens", "tenant_concurrency", "starting", "query_of_death"),
    *("finished", "failed", "cancelled", "refused", "expired", "promoted", "only_fit", "cached_prefix"),
    *("stickiness_broken", "least_prefill", "least_decode", "apart_from_short", "held", "away: starting"),
    *("deaths: 1", "deaths: 2", "away: query_of_death"),
)
