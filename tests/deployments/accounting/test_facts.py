"""The lines of facts."""

from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.accounting.facts import (
    AttemptUsage,
    Count,
    Fact,
    ReplicaBegun,
    ReplicaGone,
    ReplicaReady,
    ReplicasAlive,
    Settled,
    Tariff,
    Watched,
    fact_in,
    line_of,
)

NS, TEXT = st.integers(0, 1 << 62), st.text(max_size=20)
TOKENS = st.integers(0, 1_000_000)
FACTS = st.one_of(
    st.builds(
        Tariff, NS, TEXT, TEXT, TEXT, TEXT, st.integers(0, 64), st.fractions(0, 1_000), TEXT, TOKENS, st.floats(0, 1e3)
    ),
    st.builds(ReplicaBegun, NS, TEXT, TEXT, TEXT),
    st.builds(ReplicaReady, NS, TEXT),
    st.builds(ReplicaGone, NS, TEXT),
    st.builds(ReplicasAlive, NS, st.lists(TEXT, max_size=3).map(tuple)),
    st.builds(Watched, NS, TEXT, st.dictionaries(TEXT, NS, max_size=3), st.dictionaries(TEXT, NS, max_size=3)),
    st.builds(
        AttemptUsage, TEXT, TEXT, TEXT, TEXT, TEXT, NS, NS, st.sampled_from(Count), TOKENS, TOKENS, TOKENS, TOKENS, TEXT
    ),
    st.builds(Settled, NS),
)
TARIFF = Tariff(1, "m", "default", "here", "h100", 2, Fraction(1, 3), "", 2_048, 4.0)


@given(FACTS)
def test_a_fact_is_read_back_as_it_was(fact: Fact) -> None:
    line = line_of(fact)
    assert line.count(b"\n") == 1
    assert fact_in(line) == fact


def test_a_line_of_a_cell_without_peers_is_read() -> None:
    """As they were written before there were homes."""
    line = b'["usage","1","r","m","a","chat",1,2,"engine",90,0,5,1]'
    assert fact_in(line) == AttemptUsage("1", "r", "m", "a", "chat", 1, 2, Count.ENGINE, 90, 0, 5, 1)
    assert fact_in(line[:-1] + b',"eu"]') == AttemptUsage(
        "1", "r", "m", "a", "chat", 1, 2, Count.ENGINE, 90, 0, 5, 1, "eu"
    )


@given(FACTS, st.integers(0, 200))
def test_a_line_that_broke_off_is_no_fact(fact: Fact, kept: int) -> None:
    line = line_of(fact)[:-1]
    if kept < len(line):
        with pytest.raises(ValueError, match="not a fact"):
            fact_in(line[:kept])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'["nothing",1]',
        b'["ready",1]',
        b'["ready",-1,"r"]',
        b'["ready",true,"r"]',
        b'["ready",1.5,"r"]',
        b'["ready",1,2]',
        b'["ready",1,"r",3]',
        b'["alive",1,"r"]',
        b'["watched",1,"g",[],{}]',
        line_of(TARIFF).replace(b"1/3", b"-1/3"),
        line_of(TARIFF).replace(b"1/3", b"1/0"),
        line_of(TARIFF).replace(b"4.0", b"NaN"),
    ],
)
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a fact"):
        fact_in(line)
