from hypothesis import given
from hypothesis import strategies as st

from autoscaling.serve.handover import PATIENCE_TICKS, Handover


class Serve:
    """What Serve does with a policy's number: at once, but from many to none in two ticks."""

    def __init__(self, target: int, handover: Handover) -> None:
        self.target = target
        self.handover = handover

    def tick(self) -> None:
        desired = self.handover.tick(self.target)
        self.target = max(1, desired) if desired < self.target > 1 else desired


def test_nothing_is_asked_before_the_first_decision() -> None:
    handover = Handover()
    assert handover.applied is None
    assert [handover.tick(3), handover.tick(3)] == [3, 3]
    assert handover.applied == 3


def test_what_is_on_its_way_counts_as_applied() -> None:
    handover = Handover()
    serve = Serve(4, handover)
    serve.tick()
    handover.ask(0)
    seen = [(handover.applied, serve.target)]
    for _ in range(3):
        serve.tick()
        seen.append((handover.applied, serve.target))
    assert seen == [(0, 4), (0, 1), (0, 0), (0, 0)]


def test_another_hands_number_stands_until_the_next_decision() -> None:
    handover = Handover()
    serve = Serve(2, handover)
    serve.tick()
    handover.ask(3)
    for _ in range(3):
        serve.tick()
    serve.target = 7
    for _ in range(30):
        serve.tick()
    assert (serve.target, handover.applied) == (7, 7)
    handover.ask(3)
    serve.tick()
    assert serve.target == 3


def test_a_number_that_serve_refuses_is_given_up() -> None:
    handover = Handover()
    handover.tick(2)
    handover.ask(5)
    for _ in range(PATIENCE_TICKS):
        assert handover.tick(2) == 5
    assert (handover.tick(2), handover.applied) == (2, 2)


@given(st.integers(0, 20), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=20))
def test_serve_comes_to_run_what_was_asked_last(first: int, asks: list[tuple[int, int]]) -> None:
    handover = Handover()
    serve = Serve(first, handover)
    serve.tick()
    for number, ticks in asks:
        handover.ask(number)
        assert handover.applied == number
        for _ in range(ticks):
            serve.tick()
    for _ in range(3):
        serve.tick()
    assert serve.target == handover.applied == (asks[-1][0] if asks else first)
