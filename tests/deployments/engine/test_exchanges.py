"""The books of HTTP exchanges."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engine.exchanges import CLIENT_LEFT, EngineExchange, Exchanges, current
from deployments.protocol import Finished, Usage


class Desk:
    """Books, and what they reported."""

    def __init__(self) -> None:
        self.reports: list[Finished] = []
        self.first: list[tuple[str, ...]] = []
        self.books = Exchanges(self.reports.append, lambda message: self.first.append(message.request_ids))

    def begin(self, request_id: str, **attempt_ids: int) -> EngineExchange:
        """Opens an exchange that asks the engine for these requests (id: sequences)."""
        exchange = self.books.begin(request_id, now=10.0)
        token = current.set(exchange)
        for attempt_id, sequences in attempt_ids.items():
            self.books.accept(attempt_id, sequences)
        current.reset(token)
        return exchange


@pytest.fixture
def desk() -> Desk:
    return Desk()


@dataclass(eq=False)
class Sequence:
    """A sequence in the engine."""

    is_prefilling: bool = True


def stats(output_tokens: int, decode_s: float = 0.0) -> Usage:
    return Usage(
        prompt_tokens=5,
        cached_tokens=2,
        output_tokens=output_tokens,
        preemptions=1,
        queued_s=0.1,
        prefill_s=0.2,
        decode_s=decode_s,
    )


def test_an_exchange_is_the_sum_of_its_sequences_and_the_times_of_the_last(desk: Desk) -> None:
    exchange = desk.begin("r", a=2, b=1)
    exchange.status = 200
    exchange.first_byte = 10.5
    for attempt_id, tokens, decode_s in (("a", 3, 1.0), ("b", 4, 2.0), ("a", 5, 3.0)):
        desk.books.record(attempt_id, stats(tokens, decode_s))
    assert desk.reports == []
    assert desk.books.end(exchange, now=12.0)
    assert desk.reports == [
        Finished("r", 200, Usage(15, 6, 12, 3, 3, 0.2, 3.0, 0.1), 0.5, 2.0)
    ]  # fmt: skip


def test_an_aborted_exchange_is_reported_with_what_is_known(desk: Desk) -> None:
    exchange = desk.begin("r", a=2)
    desk.books.record("a", stats(3))
    desk.books.end(exchange, now=11.0)
    desk.books.settle(exchange)
    assert [(report.status, report.usage.sequences, report.usage.output_tokens) for report in desk.reports] == [
        (CLIENT_LEFT, 1, 3)
    ]
    desk.books.record("a", stats(9))
    assert len(desk.reports) == 1


def test_an_exchange_that_asked_the_engine_for_nothing_is_reported_at_its_end(desk: Desk) -> None:
    exchange = desk.begin("r")
    exchange.status = 400
    assert desk.books.end(exchange, now=10.25)
    assert [(report.status, report.usage.sequences, report.first_byte_s, report.wall_s) for report in desk.reports] == [
        (400, 0, None, 0.25)
    ]


def test_a_request_that_the_engine_refused_is_not_waited_for(desk: Desk) -> None:
    exchange = desk.begin("r", a=2)
    desk.books.retract("a", 2)
    assert desk.books.end(exchange, now=11.0)
    desk.books.retract("unknown", 1)
    assert [report.usage.sequences for report in desk.reports] == [0]


def test_what_no_exchange_asked_for_is_ignored(desk: Desk) -> None:
    desk.books.accept("warm-up", 1)
    desk.books.record("warm-up", stats(3))
    assert desk.books.idle
    assert desk.reports == []


@pytest.mark.whole
@given(st.data())
def test_every_exchange_is_reported_once_and_no_token_is_lost(data: st.DataObject) -> None:
    desk = Desk()
    sizes = data.draw(st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=6))
    exchanges = [desk.begin(f"r{i}", **{f"{i}-{j}": n for j, n in enumerate(size)}) for i, size in enumerate(sizes)]
    events = [("record", f"{i}-{j}") for i, size in enumerate(sizes) for j, n in enumerate(size) for _ in range(n)]
    events += [("end", i) for i in range(len(sizes))]
    for kind, which in data.draw(st.permutations(events)):
        if kind == "record":
            desk.books.record(str(which), stats(1))
        else:
            desk.books.end(exchanges[int(which)], now=11.0)
    assert desk.books.idle, "the last of its statistics and its end are enough"
    for exchange in exchanges:
        desk.books.settle(exchange)
    assert sorted(report.request_id for report in desk.reports) == sorted(f"r{i}" for i in range(len(sizes)))
    assert {report.request_id: report.usage.output_tokens for report in desk.reports} == {
        f"r{i}": sum(size) for i, size in enumerate(sizes)
    }


def expect(desk: Desk, exchange: EngineExchange, count: int, *sequences: Sequence) -> None:
    """As the task that serves the exchange does, once the engine has its sequences."""
    token = current.set(exchange)
    desk.books.expect(count, sequences)
    current.reset(token)


def test_first_tokens_are_told_once_for_a_step_when_all_prompts_and_sequences_have_theirs(desk: Desk) -> None:
    several, single = desk.begin("several", a=2, b=1), desk.begin("single", c=1)
    first, second, third, other = (Sequence() for _ in range(4))
    expect(desk, several, 2, first, second)
    expect(desk, single, 1, other)
    first.is_prefilling = second.is_prefilling = False
    desk.books.stepped()
    assert desk.first == []  # the second prompt is on its way into the engine
    expect(desk, several, 1, third)
    desk.books.stepped()
    assert desk.first == []
    third.is_prefilling = other.is_prefilling = False
    desk.books.stepped()
    desk.books.stepped()
    assert desk.first == [("several", "single")]
    assert several.answered
    assert single.answered


def test_the_first_byte_of_a_stream_is_word_enough(desk: Desk) -> None:
    streamed, whole = desk.begin("streamed", a=1), desk.begin("whole", b=1)
    streamed.streams = True
    first, second = Sequence(), Sequence()
    expect(desk, streamed, 1, first)
    expect(desk, whole, 1, second)
    first.is_prefilling = second.is_prefilling = False
    desk.books.stepped()
    assert desk.first == [("whole",)]
    assert streamed.answered


def test_a_request_that_ended_before_it_was_looked_at_has_its_first_token(desk: Desk) -> None:
    expect(desk, desk.begin("r", a=2), 2)
    assert desk.first == [("r",)]


def test_an_exchange_that_ended_without_a_first_token_is_told_of_no_more(desk: Desk) -> None:
    exchange = desk.begin("r", a=2)
    sequence = Sequence()
    expect(desk, exchange, 1, sequence)
    desk.books.end(exchange, now=11.0)
    expect(desk, exchange, 1, Sequence())
    sequence.is_prefilling = False
    desk.books.stepped()
    assert desk.first == []
    assert not desk.books._prefilling


def test_a_sequence_that_the_engine_refused_is_not_waited_for(desk: Desk) -> None:
    exchange = desk.begin("r", a=1, b=1)
    sequence = Sequence()
    expect(desk, exchange, 1, sequence)
    desk.books.retract("b", 1)
    sequence.is_prefilling = False
    desk.books.stepped()
    assert desk.first == [("r",)]
