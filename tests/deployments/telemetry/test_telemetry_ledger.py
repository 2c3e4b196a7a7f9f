"""The ledger: however a request goes and wherever it ends, its stages add up to its wall time and none is negative."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.telemetry.journal import Closing
from deployments.telemetry.ledger import Ledger, RequestOutcome, Stage
from tests.deployments.telemetry.lives import LIVES, TIMES, Life, finished, ledger


@given(LIVES)
def test_the_stages_add_up(life: Life) -> None:
    one = life.run()
    assert list(one.stages()) == [stage for stage in Stage if stage in one.stages()]  # in the order in which they pass
    stages = one.stages()
    assert abs(one.unaccounted_s) < 1e-6
    assert abs(sum(stages.values()) - one.wall_s) < 1e-6
    assert all(seconds >= -1e-9 for seconds in stages.values()), stages
    assert one.record()["wall_s"] == pytest.approx(one.wall_s, abs=1e-5)


@pytest.mark.whole
@given(LIVES)
def test_ttft_and_tpot_are_of_the_answer(life: Life) -> None:
    one = life.run()
    if one.ttft_s is not None:
        assert -1e-9 <= one.ttft_s <= one.wall_s + 1e-9
    if one.tpot_s is not None:
        assert one.stream
        assert one.tpot_s >= 0


def test_a_whole_life() -> None:
    done = finished(queued_s=0.1, prefill_s=0.2, first_byte_s=0.5)
    one = Life(0.1, [(1.0, 0.25)], 0.5, True, 0.7, [(0.1, 0.3), (0.2, 0.4)], 0.05, 0.01, True, done).run()
    assert {stage: round(seconds, 9) for stage, seconds in one.stages().items()} == {
        Stage.GATEWAY: 0.11,
        Stage.LANE: 1.5,
        Stage.CONNECT: 0.45,
        Stage.ENGINE_HTTP: 0.2,
        Stage.ENGINE_QUEUE: 0.1,
        Stage.PREFILL: 0.2,
        Stage.DECODE: 0.7,
        Stage.CLIENT_STALL: 0.35,
    }
    assert one.ttft_s == pytest.approx(2.55)
    assert one.tpot_s == pytest.approx(1.0 / 4)


def test_an_answer_that_is_not_streamed_has_a_ttft_only_by_the_engines_account() -> None:
    one = Life(0.1, [], 0.4, True, 3.0, [], 0.0, 0.0, False).run()
    assert one.ttft_s is None
    one.finished = finished(decode_s=2.0, prefill_s=0.5, first_byte_s=2.9)
    assert one.ttft_s == pytest.approx(1.5)
    assert one.stages()[Stage.DECODE] == pytest.approx(2.0)
    assert one.tpot_s is None


def test_what_is_refused_before_the_lane_is_the_gateways() -> None:
    one = ledger()
    one.ended_s = 100.5
    assert one.stages() == {Stage.GATEWAY: 0.5}
    one.submitted(100.2)  # the lane took no more
    assert one.stages() == {Stage.GATEWAY: pytest.approx(0.5), Stage.LANE: 0.0}


@given(st.tuples(TIMES, TIMES, TIMES, TIMES, TIMES))
def test_a_hop_begins_where_the_lane_ends(times: tuple[float, ...]) -> None:
    waits_s, there_s, engine_s, back_s, decode_s = times
    one = ledger(stream=True, peer="us")
    one.submitted(100.0)
    one.left_lane(100.0 + waits_s, placed=True)
    one.first_byte_s = 100.0 + waits_s + there_s + engine_s + back_s
    one.engine_wait_s = decode_s
    one.last_byte_s = one.ended_s = one.first_byte_s + decode_s
    one.finished = finished(prefill_s=engine_s, first_byte_s=engine_s)
    stages = one.stages()
    assert stages[Stage.LANE] == pytest.approx(waits_s, abs=1e-6)
    assert stages[Stage.HOP] == pytest.approx(there_s + back_s, abs=1e-6)
    assert abs(one.unaccounted_s) < 1e-6


def test_server_timing_says_what_is_known() -> None:
    one = ledger()
    assert one.server_timing() == "gateway;dur=0.00, lane;dur=0.00"
    one.submitted(100.01)
    one.left_lane(100.03, placed=True)
    assert one.server_timing() == "gateway;dur=10.00, lane;dur=20.00"
    one.first_byte_s = 100.075
    assert one.server_timing() == "gateway;dur=10.00, lane;dur=20.00, engine;dur=45.00"


class Closed:
    """A Closing, and what it handed on."""

    def __init__(self) -> None:
        self.ledgers: list[Ledger] = []
        self.closing = Closing(self.ledgers.append, patience_s=1.0)

    def open(self, attempt_id: str = "engine") -> Ledger:
        one = ledger()
        one.attempt_id = attempt_id
        self.closing.open(one)
        return one


def test_nothing_waits_for_ever() -> None:
    closed = Closed()
    one = closed.open()
    closed.closing.ended(one)
    closed.closing.sweep(0.0)
    assert closed.ledgers == []
    closed.closing.sweep(1e9)
    assert closed.ledgers == [one]
    assert len(closed.closing) == 0


def test_what_runs_is_not_swept() -> None:
    closed = Closed()
    closed.open()
    closed.closing.sweep(1e9)
    closed.closing.flush()
    assert closed.ledgers == []


def test_what_no_engine_took_is_handed_on_at_once() -> None:
    closed = Closed()
    one = closed.open()
    closed.closing.forget(one)
    closed.closing.ended(one)
    assert closed.ledgers == [one]
    never = ledger(outcome=RequestOutcome.REFUSED)
    closed.closing.ended(never)
    assert closed.ledgers == [one, never]


def test_a_second_attempt_has_an_id_of_its_own() -> None:
    closed = Closed()
    one = closed.open("r-1")
    closed.closing.forget(one)
    one.attempt_id = "r-2"
    closed.closing.open(one)
    closed.closing.finished(finished("r-1"))  # of the refusal: nobody's
    closed.closing.ended(one)
    assert closed.ledgers == []
    closed.closing.finished(finished("r-2"))
    assert closed.ledgers == [one]


def test_the_account_of_an_attempt_without_an_answer_does_not_close_the_next() -> None:
    closed = Closed()
    one = closed.open("r-1")
    closed.closing.finished(finished("r-1"))
    closed.closing.forget(one)
    one.refused(100.01)
    one.attempt_id = "r-2"
    closed.closing.open(one)
    closed.closing.ended(one)
    assert closed.ledgers == []
    closed.closing.finished(finished("r-2"))
    assert closed.ledgers == [one]


def test_the_end_hands_on_all() -> None:
    closed = Closed()
    ledgers = [closed.open(str(number)) for number in range(3)]
    for one in ledgers:
        closed.closing.ended(one)
    closed.closing.flush()
    assert closed.ledgers == ledgers


@given(st.permutations(["open", "finished", "ended", "sweep", "sweep"]))
def test_each_ledger_is_handed_on_once(order: list[str]) -> None:
    closed = Closed()
    one = ledger()
    for step in order:
        {
            "open": lambda: closed.closing.open(one),
            "finished": lambda: closed.closing.finished(finished()),
            "ended": lambda: closed.closing.ended(one) if "open" in order[: order.index("ended")] else None,
            "sweep": lambda: closed.closing.sweep(1e9),
        }[step]()
    if "open" in order[: order.index("ended")]:
        closed.closing.sweep(1e9)
        assert closed.ledgers == [one]
        assert len(closed.closing) == 0
