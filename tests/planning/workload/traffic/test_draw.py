"""Drawn traffic: it follows the file and the seed, streams do not disturb each other, conversations and system prompts
share what they should."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planning.workload.trace import Trace
from planning.workload.traffic.draw import draw
from planning.workload.traffic.file import TrafficError, parse_traffic

CHAT = {
    "name": "chat",
    "rate": {"per_s": 4},
    "prompt": "uniform:20:80",
    "output": "uniform:5:50",
    "prefix": {"count": 3, "tokens": 200, "share": 0.5},
    "sessions": {"turns": 3, "pause_s": 20, "context_tokens": 2_000},
    "classes": [{"name": "interactive"}],
    "tenants": {"count": 5, "zipf": 1},
}
CODE = {
    "name": "code",
    "rate": {"per_s": 6},
    "prompt": 100,
    "output": 10,
    "prefix": {"count": 2, "tokens": 70},
    "tenants": {"names": [{"name": "x"}]},
}


def drawn(*streams: dict[str, Any], seed: int = 0, **more: object) -> Trace:
    return draw(parse_traffic(yaml.safe_dump({"duration_s": 2_000, "streams": list(streams), "seed": seed, **more})))


def same(first: Trace, second: Trace) -> bool:
    return all(str(getattr(first, one.name)) == str(getattr(second, one.name)) for one in fields(Trace)) and len(
        first
    ) == len(second)


def test_the_same_seed_gives_the_same_requests_and_another_one_others() -> None:
    assert same(drawn(CHAT, CODE, seed=4), drawn(CHAT, CODE, seed=4))
    assert not same(drawn(CHAT, CODE, seed=4), drawn(CHAT, CODE, seed=5))


def test_a_stream_that_is_added_leaves_the_others_as_they_were() -> None:
    alone, beside = drawn(CODE), drawn(CODE, {**CHAT, "name": "more"})
    assert beside.tenant is not None
    mine = beside.take(np.flatnonzero(np.array(beside.tenant.names)[beside.tenant.codes] == "x"))
    assert (mine.arrived_s == alone.arrived_s).all()


@pytest.mark.whole
@settings(max_examples=25)
@given(
    st.floats(1, 8),
    st.integers(1, 100),
    st.integers(400, 3_000),
    st.integers(1, 300),
    st.integers(1, 90),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 9),
)
def test_conversations_grow_and_share_what_was_said(
    turns: float, pause_s: int, context: int, chunk: int, text: int, share: float, seed: int
) -> None:
    sessions = {"turns": turns, "pause_s": pause_s, "context_tokens": context}
    prefix = {"count": 2, "tokens": text, "share": share}
    trace = drawn({**CHAT, "sessions": sessions, "prefix": prefix}, seed=seed, duration_s=100, chunk_tokens=chunk)
    assert trace.session is not None
    assert trace.prefixes is not None
    assert (np.diff(trace.arrived_s) >= 0).all()
    assert (trace.prompt_tokens + trace.output_tokens).max() <= context
    assert (trace.prefixes.counts == trace.prompt_tokens // chunk).all()
    for number in np.unique(trace.session):
        talk = trace.take(np.flatnonzero(trace.session == number))
        assert talk.prefixes is not None
        assert (talk.prompt_tokens[1:] > talk.prompt_tokens[:-1] + talk.output_tokens[:-1]).all()
        for index in range(1, len(talk)):
            before = talk.prefixes[index - 1]
            assert talk.prefixes[index][: len(before)] == before
    firsts = {
        number: trace.prefixes[int(np.flatnonzero(trace.session == number)[0])] for number in np.unique(trace.session)
    }
    beyond = [hashes[text // chunk :] for hashes in firsts.values()]
    own = [hash_ for hashes in beyond for hash_ in hashes]
    assert len(own) == len(set(own))  # what lies beyond the system prompt is each conversation's own


def test_system_prompts_are_shared_by_their_weights() -> None:
    trace = drawn({**CODE, "prefix": {"count": 3, "tokens": 130, "zipf": 1, "share": 0.8}}, duration_s=10_000)
    assert trace.prefixes is not None
    seen = [trace.prefixes[index] for index in range(len(trace))]
    shares = sorted((seen.count(hashes) / len(seen) for hashes in set(seen) if hashes), reverse=True)
    assert shares == pytest.approx([0.8 * part / (11 / 6) for part in (1, 1 / 2, 1 / 3)], abs=0.02)
    assert all(len(hashes) in (0, 2) for hashes in seen)
    assert set(trace.prompt_tokens) == {100, 230}


def test_the_rate_counts_all_turns() -> None:
    trace = drawn({**CHAT, "sessions": {"turns": 3, "pause_s": 1}}, duration_s=20_000)
    assert len(trace) / 20_000 == pytest.approx(4, rel=0.05)


def test_regions_live_on_their_own_clocks() -> None:
    office = {**CODE, "rate": {"curve": [{"hour": 8, "per_s": 0}, {"hour": 12, "per_s": 2}, {"hour": 16, "per_s": 0}]}}
    trace = drawn(
        office,
        duration_s=86_400,
        regions=[{"name": "eu", "share": 3, "hour_offset": 1}, {"name": "us", "hour_offset": -6}],
    )
    assert trace.region is not None
    codes = np.array(trace.region.names)[trace.region.codes]
    eu, us = (trace.arrived_s[codes == name] / 3_600 for name in ("eu", "us"))
    assert len(eu) / len(us) == pytest.approx(3, rel=0.1)
    assert (eu.mean(), us.mean()) == pytest.approx((11, 18), abs=0.2)
    assert (eu.min() >= 7, eu.max() <= 15, us.min() >= 14, us.max() <= 22) == (True, True, True, True)


def test_no_traffic_and_too_much_are_refused() -> None:
    with pytest.raises(TrafficError, match="not one request"):
        drawn({**CODE, "rate": {"per_s": 0}})
    with pytest.raises(TrafficError, match="at most 50000000"):
        drawn({**CODE, "rate": {"per_s": 1e6}})
