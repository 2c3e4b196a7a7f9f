"""A booking crosses a header; and what a dead gateway's clients lost is counted by it: once, whichever comes first, the
death or the drop."""

from dataclasses import replace

import pytest

from deployments.ownership.takeover import Booking, Losses, booking_of, read_booking
from deployments.protocol import Finished, Usage
from deployments.scheduling import Lease, Request

BOOKING = Booking("g1", "q", 4, "b", 70, 30, 2, 140, 300, 31, 1)


def dropped(gateway: str, sequences: int = 0, booking: str | None = None) -> Finished:
    """A replica dropped a request of that gateway, of 2 x (70 + 30) tokens."""
    text = Booking(gateway, "q", 1, "", 70, None, 2, 140, 200, 30, 0).encode() if booking is None else booking
    return Finished("q-1", 499, Usage(0, 0, 0, 0, sequences, 0.0, 0.0, 0.0), None, 0.0, text)


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x" * 2_049, "2049 characters; allowed: 2048"),
        ("nonsense", "MessagePack|Booking|base64|Incorrect"),
        (replace(BOOKING, attempt=0).encode(), r"`int` >= 1 - at `\$\.attempt`"),
        (replace(BOOKING, kv_tokens=-1).encode(), r"`int` >= 0 - at `\$\.kv_tokens`"),
        (replace(BOOKING, tenant=5).encode(), r"`str`, got `int` - at `\$\.tenant`"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_booking_is_refused_by_the_name_of_its_field(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_booking(text)


def test_a_lease_is_booked_and_comes_back_without_what_mattered_while_it_waited() -> None:
    request = Request("q", 70, 30, 90.0, 105.0, 160.0, 2, "batch", "b", (7, 8), 64, 3, "d1", 0, "us", 1)
    lease = Lease(9, request, "r1", 100.0, 4, 140, 300, 31, 1)
    booking = read_booking(booking_of(lease, "g1").encode())
    assert (booking, booking.tokens) == (booking_of(lease, "g1"), (70 + 31) * 2)
    kept = Request("q", 70, 30, 200.0, 200.0, 200.0, 2, tenant="b", digest="d1", guest_of="us")
    assert booking.lease("r1", 200.0) == Lease(0, kept, "r1", 200.0, 4, 140, 300, 31, 1)
