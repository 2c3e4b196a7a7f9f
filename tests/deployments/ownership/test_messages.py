"""Every field of a message crosses the wire under its own name; what is no message is refused with what was read."""

import dataclasses
import json

import pytest

from deployments.ownership.messages import (
    Admitted,
    Died,
    Message,
    Placed,
    Refused,
    Submit,
    Suspected,
    Waiting,
    admitted_of,
    decode,
    encode,
    placed_of,
    suspected_of,
    waiting_of,
)
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Lease,
    PickReason,
    Placement,
    RejectCause,
    Request,
    Suspicion,
)

REQUEST = Request("q", 70, 30, 90.0, 105.0, 160.0, 2, "batch", "b", (7, 8), 64, 3, "d1", 80, "us", 1, 900)
WAITING = Waiting("q", 70, 30, 10.0, 5.0, 60.0, 2, "batch", "b", [7, 8], 64, 3, "d1", 80, "us", 1, 900)
LEASE = Lease(9, REQUEST, "r1", 100.0, 4, 140, 300, 31, 1)
PLACED = Placed("q", "r1", "http://r1", PickReason.LEAST_DECODE, "long", True, 3.5, [1.0, 2.0], 4, 140, 300, 31, 1)
ADMITTED = Admitted("q", AdmissionKind.REJECT, "long", RejectCause.LANE_FULL, [1.0, 2.0], 7.0, 8.0)
REFUSED = Refused(WAITING, "r1", 4, "draining")
SUSPECTED = Suspected("d1", 2, True, 30.0)


def test_a_request_is_sent_with_ages_and_spans() -> None:
    assert waiting_of(REQUEST, 100.0) == WAITING
    assert WAITING.request(1_000.0) == dataclasses.replace(
        REQUEST, arrived_s=990.0, deadline_s=1_005.0, expires_s=1_060.0
    )


def test_a_placement_is_sent_whole() -> None:
    placement = Placement(REQUEST, LEASE, PickReason.LEAST_DECODE, "long", True, 3.5, (1.0, 2.0))
    assert placed_of(placement, "http://r1") == PLACED
    assert PLACED.placement(REQUEST, 100.0) == dataclasses.replace(
        placement, lease=dataclasses.replace(LEASE, lease_id=0)
    )
    untold = dataclasses.replace(placement, eta_s=None)
    assert placed_of(untold, "http://r1").eta_s is None
    assert dataclasses.replace(PLACED, eta_s=None).placement(REQUEST, 100.0).eta_s is None


def test_a_suspicion_is_sent_with_its_age() -> None:
    assert suspected_of(Suspicion("d1", 2, True, 70.0), 100.0) == SUSPECTED
    assert SUSPECTED.suspicion(1_000.0) == Suspicion("d1", 2, True, 970.0)
    assert suspected_of(Suspicion("d1", 0, False, 0.0), 100.0).age_s == 0.0, "one that is clear has no age"


def test_an_admission_is_sent_whole() -> None:
    admission = Admission(AdmissionKind.REJECT, "long", RejectCause.LANE_FULL, (1.0, 2.0), 7.0, 8.0)
    assert admitted_of("q", admission) == ADMITTED
    assert ADMITTED.admission == admission
    assert admitted_of("q", dataclasses.replace(admission, eta_s=None)).eta_s is None
    assert dataclasses.replace(ADMITTED, eta_s=None).admission == dataclasses.replace(admission, eta_s=None)


MESSAGES = [
    Submit(WAITING, True),
    Submit(WAITING, False, {"home": "us"}),
    PLACED,
    ADMITTED,
    REFUSED,
    Died("q-4"),
    SUSPECTED,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_line_holds_the_type_and_every_field(message: Message) -> None:
    line = encode(message)
    assert json.loads(line) == json.loads(
        json.dumps({"type": type(message).__name__.lower(), **dataclasses.asdict(message)})
    )
    assert b": " not in line
    assert b", " not in line
    assert decode(line) == message


@pytest.mark.parametrize(
    "line",
    [b"[]", b"{}", b'{"type":"nothing"}', b'{"type":"cancel"}', b'{"type":"submit","waiting":{},"admitted":true}'],
)
def test_a_refusal_quotes_what_was_read(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not a message of a lane's channel: b'") as refused:
        decode(line)
    assert repr(line) in str(refused.value)


def test_a_refusal_quotes_no_more_than_a_beginning() -> None:
    with pytest.raises(ValueError, match=r"^not a message") as refused:
        decode(b'{"type":"' + b"x" * 500 + b'"}')
    assert str(refused.value).count("x") == 200 - len('{"type":"')
