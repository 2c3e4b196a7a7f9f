"""What a dead gateway's clients lost: counted once, whichever comes first, the death or the drop."""

from deployments.ownership.takeover import Booking, Losses
from deployments.protocol import Finished


def dropped(gateway: str, sequences: int = 0, booking: str | None = None) -> Finished:
    """A replica dropped a request of that gateway, of 2 x (70 + 30) tokens."""
    text = Booking(gateway, "q", 1, "", 70, None, 2, 140, 200, 30, 0).encode() if booking is None else booking
    return Finished("q-1", 499, sequences, 0, 0, 0, 0, 0.0, 0.0, 0.0, None, 0.0, text)


def test_a_death_that_is_known_counts_at_once() -> None:
    losses = Losses()
    losses.died(["g1"], 0.0)
    losses.dropped(dropped("g1"), 1.0)
    losses.dropped(dropped("g2"), 1.0)
    assert (losses.requests, losses.tokens) == (1, 200)


def test_a_death_that_is_noticed_later_counts_what_was_dropped_shortly_before() -> None:
    losses = Losses()
    losses.dropped(dropped("g1"), 9.9)
    losses.dropped(dropped("g1"), 10.0)
    losses.dropped(dropped("g1"), 11.0)
    losses.dropped(dropped("g2"), 11.0)
    losses.died(["g1", "g3"], 40.0)
    assert (losses.requests, losses.tokens) == (2, 400)
    losses.died(["g1", "g3"], 40.0)
    assert losses.requests == 2, "a death is counted once"
    losses.died(["g2", "g1"], 40.0)
    assert losses.requests == 3


def test_one_that_came_back_can_die_again() -> None:
    losses = Losses()
    losses.died(["g1"], 0.0)
    losses.died([], 1.0)
    losses.dropped(dropped("g1"), 2.0)
    assert losses.requests == 0
    losses.died(["g1"], 3.0)
    assert losses.requests == 1


def test_what_finished_or_says_not_whose_it_was_is_no_loss() -> None:
    losses = Losses()
    losses.died(["g1"], 0.0)
    for message in (dropped("g1", sequences=1), dropped("g1", booking=""), dropped("g1", booking="nonsense")):
        losses.dropped(message, 1.0)
    assert (losses.requests, losses.tokens) == (0, 0)
