"""The benchmark of groups: its traffic, its sides and its search, without a cluster."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.groups import (
    MOONCAKE,
    Counts,
    PriceSearch,
    attained,
    cheapest,
    mix_in,
    one_group,
    usd_per_hour,
    with_counts,
)
from benchmarks.lanes.mix import CHAT, CODE
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec

SPEC = load_spec(shipped("specs/two-groups.yaml"))
CHEAP, DEAR = SPEC.models[0].views
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def traces_in(folder: Path) -> Path:
    def azure(rows: Sequence[tuple[int, int]]) -> str:
        stamped = (f"2023-11-16 18:00:{second:02}.0000000,{a},{b}\n" for second, (a, b) in enumerate(rows))
        return AZURE + "".join(stamped)

    (folder / CHAT.removesuffix(".gz")).write_text(azure([(100, 10), (200, 20), (40_000, 10)]))
    (folder / CODE.removesuffix(".gz")).write_text(azure([(1_000, 5), (2_000, 0)]))
    rows = ((0, 9_000, 500), (1_000, 32_700, 500))
    lines = (f'{{"timestamp": {at}, "input_length": {a}, "output_length": {b}, "hash_ids": []}}\n' for at, a, b in rows)
    (folder / MOONCAKE.removesuffix(".gz")).write_text("".join(lines))
    return folder


def test_what_exceeds_the_context_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHAT", "CODE", "MOONCAKE"):
        monkeypatch.setattr(f"benchmarks.groups.{name}", {"CHAT": CHAT, "CODE": CODE, "MOONCAKE": MOONCAKE}[name][:-3])
    mix, left_out = mix_in(traces_in(tmp_path), 32_768)
    assert left_out == 2
    schedule = mix.draw(rate=20.0, duration_s=50.0, seed=1)
    again = mix.draw(rate=20.0, duration_s=50.0, seed=1)
    assert len(schedule) == 1_000
    assert np.array_equal(schedule.prompt_tokens, again.prompt_tokens)
    assert schedule.arrived_s[-1] == pytest.approx(50.0)
    assert set(schedule.prompt_tokens.tolist()) == {100, 200, 1_000, 2_000, 9_000}
    assert schedule.output_tokens.min() == 1, "an empty answer is one token"
    assert 0.02 < (schedule.prompt_tokens == 9_000).mean() < 0.08


def test_the_sides_cost_what_their_replicas_cost() -> None:
    alone = with_counts(one_group(SPEC, "dear"), {"default": 4})
    assert (alone.models[0].groups, alone.context_of(alone.models[0])) == ((), 32_768)
    assert usd_per_hour(alone) == pytest.approx(4 * 6.88)
    both = with_counts(SPEC, {"cheap": 8, "dear": 1})
    assert [view.replicas.count for view in both.models[0].views] == [8, 1]
    assert usd_per_hour(both) == pytest.approx(8 * 1.861 + 6.88)


class KnownSearch(PriceSearch):
    """Holds where the groups together have so much of a capacity, and the dear one enough for what is long."""

    def __init__(self, needed: float, long: int) -> None:
        super().__init__([], 0.95)
        self._needed, self._long = needed, long

    def holds(self, spec: ClusterSpec, counts: Counts) -> bool:
        self.runs += 1
        return counts["dear"] >= self._long and counts["cheap"] + 3 * counts["dear"] >= self._needed


@pytest.mark.parametrize("long", [1, 2, 3])
def test_the_search_finds_the_least_price(long: int) -> None:
    found = cheapest(KnownSearch(12, long), SPEC, CHEAP, DEAR, 60.0)
    every = [
        (cheap * 1.861 + dear * 6.88, {"cheap": cheap, "dear": dear})
        for cheap in range(1, 30)
        for dear in range(long, 9)
        if cheap + 3 * dear >= 12
    ]
    assert found == min(every, key=lambda one: one[0])[1]
    assert cheapest(KnownSearch(12, long), SPEC, CHEAP, DEAR, 10.0) is None, "there is no cheaper one"


def test_who_got_no_token_missed_it() -> None:
    assert attained(np.array([0.1, 2.0, 2.1, np.nan]), 2.0) == 0.5
