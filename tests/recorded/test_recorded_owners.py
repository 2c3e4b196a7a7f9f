"""Every word of a model's owner to its gateways is the recorded one (`write.py` says when it may be recorded anew)."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from tests.recorded.files import OWNERS, compared, recorded
from tests.recorded.owner_adapter import told

IN_SHORT = 1_000


def replay(entries: Iterable[dict[str, Any]]) -> Counter[str]:
    """Returns how often there was what."""
    seen: Counter[str] = Counter()
    for entry in compared(entries, told):
        if "input" in entry:
            seen.update([entry["input"], *(word for _, word, *_ in entry["told"])])
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
