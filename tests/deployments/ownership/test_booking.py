"""A booking, field by field: what an owner that takes over rebuilds its books from."""

import json

import pytest

from deployments.ownership.takeover import Booking, booking_of, read_booking
from deployments.scheduling import Lease, Request

BOOKING = Booking("g1", "q", 4, "b", 70, 30, 2, 140, 300, 31, 1, "d1", "us")
FIELDS = ["g1", "q", 4, "b", 70, 30, 2, 140, 300, 31, 1, "d1", "us"]
REQUEST = Request("q", 70, 30, 90.0, 105.0, 160.0, 2, "batch", "b", (7, 8), 64, 3, "d1", 0, "us", 1)
LEASE = Lease(9, REQUEST, "r1", 100.0, 4, 140, 300, 31, 1)


def test_a_lease_is_booked_and_comes_back() -> None:
    assert booking_of(LEASE, "g1") == BOOKING
    assert BOOKING.encode() == json.dumps(FIELDS, separators=(",", ":"))
    assert read_booking(BOOKING.encode()) == BOOKING
    request = Request("q", 70, 30, 200.0, 200.0, 200.0, 2, tenant="b", digest="d1", guest_of="us")
    assert BOOKING.lease("r1", 200.0) == Lease(0, request, "r1", 200.0, 4, 140, 300, 31, 1)
    assert BOOKING.tokens == (70 + 31) * 2


@pytest.mark.parametrize("index", [0, 1, 3, 11, 12])
def test_names_are_text(index: int) -> None:
    fields = [*FIELDS[:index], 5, *FIELDS[index + 1 :]]
    with pytest.raises(ValueError, match=r"^not a booking: "):
        read_booking(json.dumps(fields))


@pytest.mark.parametrize("index", [2, 4, 6, 7, 8, 9, 10])
@pytest.mark.parametrize("bad", [-1, 1.5, "1", None, True])
def test_sizes_are_whole_numbers_from_nothing_up(index: int, bad: object) -> None:
    fields = [*FIELDS[:index], bad, *FIELDS[index + 1 :]]
    with pytest.raises(ValueError, match=r"^not a booking: "):
        read_booking(json.dumps(fields))


def test_the_first_attempt_is_the_least_and_nothing_is_a_size() -> None:
    assert read_booking(json.dumps(["g", "q", 1, "", 0, None, 0, 0, 0, 0, 0])).attempt == 1
    with pytest.raises(ValueError, match=r"^not a booking: "):
        read_booking(json.dumps(["g", "q", 0, "", 0, None, 0, 0, 0, 0, 0]))


def test_a_long_text_is_refused_before_it_is_read_and_quoted_by_its_beginning() -> None:
    fitting = json.dumps(["g" * (2_048 - len(json.dumps(["", *FIELDS[1:]]))), *FIELDS[1:]])
    assert len(fitting) == 2_048
    assert read_booking(fitting).request_id == "q"
    with pytest.raises(ValueError, match=r"^2049 characters; allowed: 2048$"):
        read_booking(fitting + " ")
    for text in (json.dumps(["x" * 500, 5, *FIELDS[2:]]), json.dumps(["x" * 500])):
        with pytest.raises(ValueError, match=r"^not a booking: ") as refused:
            read_booking(text)
        assert str(refused.value).count("x") == 198
