"""The channel's parts: what crosses the wire comes out as it went in, nonsense is refused, silence is noticed."""

import asyncio
import time

import aiohttp
import hypothesis.strategies as st
import pytest
from aiohttp import web
from hypothesis import given

from deployments.cell.owners import Ownership
from deployments.ownership import channel
from deployments.ownership.channel import RemoteOwner
from deployments.ownership.messages import (
    LANES_PATH,
    Beat,
    Cancel,
    Expired,
    FirstToken,
    GuestRefused,
    Hold,
    PlacedAtPeer,
    Recalled,
    Release,
    Submit,
    admitted_of,
    decode,
    encode,
    placed_of,
    waiting_of,
)
from deployments.ownership.takeover import booking_of, read_booking
from deployments.peering import HopRefusal
from deployments.scheduling import Admission, AdmissionKind, Ending, Lease, PickReason, Placement, RejectCause, Request
from tests.deployments.ownership.peering_rig import guest_facts

COUNTS = st.integers(0, 1 << 40)

TIMES = st.floats(0, 1e6)
REQUESTS = st.builds(
    Request,
    st.text(max_size=40),
    COUNTS,
    st.none() | COUNTS,
    TIMES,
    TIMES,
    TIMES,
    COUNTS,
    st.text(max_size=10),
    st.text(max_size=10),
    st.lists(st.integers(-(1 << 63), 1 << 63), max_size=5).map(tuple),
    COUNTS,
    COUNTS,
)
ETAS = st.none() | st.tuples(TIMES, TIMES)
LEASES = st.builds(
    Lease, st.just(0), REQUESTS, st.text(max_size=20), TIMES, st.integers(1, 99), COUNTS, COUNTS, COUNTS, COUNTS
)
MESSAGES = st.one_of(
    st.builds(
        lambda request, now, admitted: Submit(waiting_of(request, now), admitted), REQUESTS, TIMES, st.booleans()
    ),
    st.builds(Cancel, st.text()),
    st.builds(Hold, st.text()),
    st.builds(FirstToken, st.text(), TIMES),
    st.builds(PlacedAtPeer, st.text(), st.integers(1, 9), st.just(guest_facts()), TIMES),
    st.builds(Recalled, st.text()),
    st.builds(GuestRefused, st.text(), st.sampled_from(HopRefusal)),
    st.builds(Release, st.text(), st.sampled_from(Ending)),
    st.builds(Expired, st.text()),
    st.builds(Beat),
    st.builds(
        admitted_of,
        st.text(),
        st.builds(
            Admission,
            st.sampled_from(AdmissionKind),
            st.text(),
            st.none() | st.sampled_from(RejectCause),
            ETAS,
            st.none() | TIMES,
            st.none() | TIMES,
        ),
    ),
    st.builds(
        lambda lease, reason, lane, promoted, waited, eta, url: placed_of(
            Placement(lease.request, lease, reason, lane, promoted, waited, eta), url
        ),
        LEASES,
        st.sampled_from(PickReason),
        st.text(),
        st.booleans(),
        TIMES,
        ETAS,
        st.text(),
    ),
)


@given(MESSAGES)
def test_messages_cross_the_wire(message: object) -> None:
    line = encode(message)  # type: ignore[arg-type]
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message


@given(REQUESTS, TIMES, TIMES)
def test_a_request_keeps_its_age_on_another_clock(request: Request, sent: float, got: float) -> None:
    there = waiting_of(request, sent).request(got)
    assert got - there.arrived_s == pytest.approx(sent - request.arrived_s, abs=1e-6)
    assert there.expires_s - got == pytest.approx(request.expires_s - sent, abs=1e-6)
    assert (there.request_id, there.prefix, there.tenant) == (request.request_id, request.prefix, request.tenant)


@given(LEASES, ETAS)
def test_a_placement_is_that_of_the_request(lease: Lease, eta: tuple[float, float] | None) -> None:
    placement = Placement(lease.request, lease, PickReason.ONLY_FIT, "short", False, 1.0, eta)
    there = placed_of(placement, "http://x").placement(lease.request, lease.placed_s)
    assert there == placement


@given(LEASES, st.text(max_size=8))
def test_a_booking_goes_through_a_header(lease: Lease, gateway: str) -> None:
    text = booking_of(lease, gateway).encode()
    assert text.isascii()
    assert "\n" not in text
    booking = read_booking(text)
    assert booking == booking_of(lease, gateway)
    again = booking.lease(lease.replica_id, lease.placed_s)
    names = ("attempt_id", "replica_id", "attempt", "prefill_tokens", "kv_tokens", "output_tokens", "home", "sequences")
    assert all(getattr(again, name) == getattr(lease, name) for name in names)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"type":"nothing"}',
        b'{"type":"cancel"}',
        b'{"type":"release","attempt_id":"a","ending":"no"}',
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(line)


async def _serve(answer: object) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_post(LANES_PATH, answer)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_a_unresponsive_owner_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "UNRESPONSIVE_AFTER_S", 0.2)
    beats = 3

    async def falls_unresponsive(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(beats):
            await response.write(encode(Beat()))
            await asyncio.sleep(0.1)
        await asyncio.sleep(60)
        return response

    runner, url = await _serve(falls_unresponsive)
    opened: list[float] = []
    try:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(TimeoutError):
                await RemoteOwner(Ownership("demo", 1, "other", url)).run(
                    session, "me", lambda: opened.append(time.monotonic())
                )
        assert time.monotonic() - opened[0] > beats * 0.1, "while it spoke it was listened to"
    finally:
        await runner.cleanup()
