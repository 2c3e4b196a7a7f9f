"""Every word of a model's owner to its gateways is the recorded one (`write.py` says by what it was recorded, and when
it may be recorded anew)."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from tests.recorded.files import OWNERS, recorded
from tests.recorded.owner_adapter import RecordedOwner

IN_SHORT = 1_000


def replay(entries: Iterable[dict[str, Any]]) -> Counter[str]:
    """Feeds the inputs and compares what gateways are told, exactly. Returns how often there was what."""
    seen: Counter[str] = Counter()
    owner = RecordedOwner()
    for number, entry in enumerate(entries, 1):
        if "books" in entry:
            assert owner.books() == entry["books"], f"line {number}: books at {entry['at']}"
            continue
        reported = owner.apply(entry["input"], entry["with"], entry["at"])
        assert reported == entry["told"], f"line {number}: {entry['input']} at {entry['at']}"
        seen[entry["input"]] += 1
        seen.update(word for _, word, *_ in reported)
    return seen


def test_an_owner_tells_its_gateways_what_is_recorded_in_short() -> None:
    assert replay(islice(recorded(OWNERS), IN_SHORT))["placed"] > 50


@pytest.mark.whole
def test_owners_tell_their_gateways_what_is_recorded() -> None:
    seen = replay(recorded(OWNERS))
    assert {name: seen[name] for name in EXPECTED if seen[name] < 10} == {}


EXPECTED = (
    *("begin", "close", "submit", "cancel", "hold", "join", "left", "first_token", "release", "refused", "again"),
    *("account", "died_under", "ring", "replica_ready", "replica_state", "replica_gone", "cordon", "expect"),
    *("reload", "admission", "placed", "expired", "owner_gone", "suspects"),
)
