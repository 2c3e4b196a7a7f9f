import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.traffic.counts import (
    LengthCounts,
    Period,
    Stream,
    Stretches,
    StretchRecord,
    TrafficCounts,
    bucket_of,
    edges_of,
)
from deployments.wire import WireError, from_plain, to_plain

LENGTHS = st.lists(st.integers(0, 2_000_000), max_size=60)
CHAT = Stream("demo", "interactive", "eu")


def counted(lengths: list[int]) -> LengthCounts:
    found = LengthCounts()
    for tokens in lengths:
        found.add(tokens)
    return found


@given(st.integers(1, 10**9))
def test_a_length_lies_in_its_bucket(tokens: int) -> None:
    low, high = edges_of(bucket_of(tokens))
    assert low < tokens <= high * (1 + 1e-12)
    assert math.sqrt(max(low, 1) * high) == pytest.approx(tokens, rel=0.045)


def test_powers_of_two_are_edges() -> None:
    assert [edges_of(bucket_of(2**power))[1] for power in range(1, 24)] == [2.0**power for power in range(1, 24)]


@pytest.mark.whole
@given(LENGTHS, LENGTHS)
def test_adding_up_loses_nothing(some: list[int], others: list[int]) -> None:
    whole, part = counted(some + others), counted(some)
    part.merge(counted(others))
    assert part == whole
    assert len(whole) == len(some) + len(others)
    assert whole.tokens == sum(some) + sum(others)


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=60))
def test_squares_are_within_nine_percent(lengths: list[int]) -> None:
    assert counted(lengths).square_sum() == pytest.approx(sum(one**2 for one in lengths), rel=0.091)


def test_no_length_has_a_mean_of_0() -> None:
    assert LengthCounts().mean == 0


def test_a_request_of_several_sequences_counts_the_length_of_one() -> None:
    counts = TrafficCounts()
    counts.finish(prompt_tokens=400, cached_tokens=100, output_tokens=40, sequences=4)
    assert (counts.prompt_tokens, counts.prompt.tokens, counts.output.tokens) == (400, 100, 10)


def test_watching_is_split_at_the_edges() -> None:
    found = Stretches()
    found.watch(3_590.0, 3_725.0)
    assert [found.watched_s(Period.MINUTE, begin) for begin in found.begins(Period.MINUTE)] == [10, 60, 60, 5]
    assert [found.watched_s(Period.HOUR, begin) for begin in (0, 3_600)] == [10, 125]
    found.watch(3_590.0, 3_725.0)  # another gateway
    assert found.watched_s(Period.MINUTE, 3_600) == 60


def test_records_hold_everything() -> None:
    found = Stretches()
    found.watch(0.0, 90.0)
    found.of(Period.MINUTE, 70.0, CHAT).finish(300, 0, 7)
    found.of(Period.MINUTE, 61.0, CHAT).rejected += 1
    record = json.loads(json.dumps(to_plain(found.record())))
    assert from_plain(record, StretchRecord).stretches() == found
    assert found.streams() == [CHAT]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"requests": -1}, "requests"),
        ({"finished": "3"}, "finished"),
        ({"prompt": {"tokens": 1, "buckets": {"3": 1.5}}}, "prompt.buckets"),
        ({"output": None}, "output"),
    ],
)
def test_wrong_counts_are_refused(change: dict[str, object], where: str) -> None:
    with pytest.raises(WireError, match=re.escape(f"$.{where}")):
        from_plain({**to_plain(TrafficCounts()), **change}, TrafficCounts)
