"""How cells prove to each other who they are: what is signed, and what is refused."""

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.peers.auth import (
    CELL_HEADER,
    CLOCK_SKEW_S,
    CONTENT_HEADER,
    HOP_HEADER,
    NONCE_HEADER,
    RECEIVER_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    Call,
    CallRefusal,
    Calls,
    PeerDoor,
    Signer,
    content_of,
)

SECRET = "s" * 40
PATH = "/raylane/peers/digest"
CELLS = ("eu", "us", "ap")


def calls_of(cell: str = "us", secret: str | None = SECRET, asks_certificate: bool = False) -> Calls:
    return Calls(Signer(cell, secret), CELLS, asks_certificate)


def headers_of(
    body: bytes = b"{}", hop: str = "", secret: str | None = SECRET, to: str = "us", ahead_s: float = 0.0
) -> dict[str, str]:
    """`ahead_s`: of the receiver's clock, of the sender's."""
    headers, _ = Signer("eu", secret, lambda: time.time() + ahead_s).call("POST", PATH, to, body, hop)
    return dict(headers)


def judged(
    headers: Mapping[str, str],
    calls: Calls | None = None,
    path: str = PATH,
    method: str = "POST",
    tls: Collection[str] | None = None,
) -> Call | CallRefusal:
    return (calls or calls_of()).judge(method, path, headers, tls)


def test_a_signed_call_is_let_in_with_its_sender() -> None:
    call = judged(headers_of(b"body", hop="facts"))
    assert isinstance(call, Call)
    assert (call.sender, call.content, call.hop) == ("eu", content_of(b"body"), "facts")


CHANGED = {
    "the sender": {CELL_HEADER: "ap"},
    "the nonce": {NONCE_HEADER: "0" * 32},
    "the time": {TIME_HEADER: str(int(time.time()) + 5)},
    "the body's hash": {CONTENT_HEADER: content_of(b"other")},
    "the hop": {HOP_HEADER: "other facts"},
    "the signature": {SIGNATURE_HEADER: "0" * 64},
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_nothing_that_is_signed_can_be_changed(change: dict[str, str]) -> None:
    assert judged(headers_of(hop="facts") | change) is CallRefusal.WRONG_SIGNATURE


def test_a_call_counts_for_its_path_and_method_alone() -> None:
    assert judged(headers_of(), path="/raylane/peers/hop") is CallRefusal.WRONG_SIGNATURE
    assert judged(headers_of(), path=PATH + "?all") is CallRefusal.WRONG_SIGNATURE
    assert judged(headers_of(), method="GET") is CallRefusal.WRONG_SIGNATURE


def test_another_secret_and_another_receiver_are_refused() -> None:
    assert judged(headers_of(secret="t" * 40)) is CallRefusal.WRONG_SIGNATURE
    assert judged(headers_of(secret=None)) is CallRefusal.WRONG_SIGNATURE
    assert judged(headers_of(to="ap")) is CallRefusal.WRONG_RECEIVER
    assert judged(headers_of(to="ap") | {RECEIVER_HEADER: "us"}) is CallRefusal.WRONG_SIGNATURE


@pytest.mark.parametrize("name", [CELL_HEADER, RECEIVER_HEADER, NONCE_HEADER, CONTENT_HEADER, SIGNATURE_HEADER])
def test_no_part_may_be_missing(name: str) -> None:
    headers = headers_of()
    del headers[name]
    assert isinstance(judged(headers), CallRefusal)


def test_a_stranger_and_the_cell_itself_are_no_peers() -> None:
    for sender in ("mars", "us", ""):
        headers, _ = Signer(sender, SECRET).call("POST", PATH, "us", b"")
        assert judged(headers) is CallRefusal.UNKNOWN_CELL


@pytest.mark.parametrize("hop", ["", "facts"], ids=["a question", "a hop"])
def test_a_call_counts_for_as_long_as_clocks_may_differ(hop: str) -> None:
    for ahead_s in (-CLOCK_SKEW_S + 5, 0, CLOCK_SKEW_S - 5):
        assert isinstance(judged(headers_of(hop=hop, ahead_s=ahead_s)), Call), ahead_s
    for ahead_s in (-CLOCK_SKEW_S - 5, CLOCK_SKEW_S + 5, -1e9):
        assert judged(headers_of(hop=hop, ahead_s=ahead_s)) is CallRefusal.STALE, ahead_s


def test_a_question_counts_once_and_a_hop_is_left_to_its_number() -> None:
    calls, question, hop = calls_of(), headers_of(), headers_of(hop="facts")
    assert isinstance(judged(question, calls), Call)
    assert [judged(question, calls) for _ in range(3)] == [CallRefusal.REPLAYED] * 3
    assert isinstance(judged(question, calls_of()), Call), "another gateway has not seen it"
    assert all(isinstance(judged(hop, calls), Call) for _ in range(3))
    assert isinstance(judged(headers_of(), calls), Call), "the same question, asked again"


def test_a_forged_question_takes_no_nonce_from_a_real_one() -> None:
    calls, question = calls_of(), headers_of()
    assert judged(question | {SIGNATURE_HEADER: "0" * 64}, calls) is CallRefusal.WRONG_SIGNATURE
    assert isinstance(judged(question, calls), Call)


def test_with_mutual_tls_a_certificate_with_the_cells_name_is_needed_beside_the_secret() -> None:
    calls = calls_of(asks_certificate=True)
    assert judged(headers_of(), calls) is CallRefusal.NO_CERTIFICATE
    for names in ((), ("ap",), ("us",), ("*",), ("eu.llm.example.org",), ("EU",)):
        assert judged(headers_of(), calls, tls=names) is CallRefusal.WRONG_CERTIFICATE, names
    assert isinstance(judged(headers_of(), calls, tls=("eu.llm.example.org", "eu")), Call)
    assert judged(headers_of(secret="t" * 40), calls, tls=("eu",)) is CallRefusal.WRONG_SIGNATURE


def test_with_mutual_tls_alone_the_certificate_proves_it() -> None:
    calls = calls_of(secret=None, asks_certificate=True)
    assert judged(headers_of(secret=None), calls) is CallRefusal.NO_CERTIFICATE
    assert judged(headers_of(secret=None), calls, tls=("ap",)) is CallRefusal.WRONG_CERTIFICATE
    assert isinstance(judged(headers_of(secret=None), calls, tls=("eu",)), Call)


@given(
    st.dictionaries(
        st.sampled_from([CELL_HEADER, RECEIVER_HEADER, NONCE_HEADER, HOP_HEADER, SIGNATURE_HEADER]), st.text()
    )
)
def test_no_head_without_the_secret_is_let_in(headers: dict[str, str]) -> None:
    assert isinstance(judged(headers), CallRefusal)
    assert isinstance(judged(headers_of(secret="t" * 40) | headers), CallRefusal)


def test_an_answer_counts_for_its_call_alone() -> None:
    asking, answering = Signer("eu", SECRET), Signer("us", SECRET)
    headers, check = asking.call("POST", PATH, "us", b"one")
    again, other = asking.call("POST", PATH, "us", b"one")
    call, later = judged(headers), judged(again)
    assert isinstance(call, Call)
    assert isinstance(later, Call)
    signature = answering.answer(call, 200, b"digest")
    assert check.is_right(200, b"digest", signature)
    assert not check.is_right(200, b"other", signature)
    assert not check.is_right(409, b"digest", signature)
    assert not other.is_right(200, b"digest", signature), "a recorded answer is none to the next call"
    assert not check.is_right(200, b"digest", Signer("ap", SECRET).answer(call, 200, b"digest")), "of a third cell"
    assert not check.is_right(200, b"digest", Signer("us", "t" * 40).answer(call, 200, b"digest"))
    assert not check.is_right(200, b"digest", "")
    assert check.frame_key == answering.frame_key("us", "eu", call.nonce)
    assert check.frame_key != other.frame_key


def test_refusals_are_counted_and_logged_once_a_minute_without_what_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = calls_of()
    with caplog.at_level(logging.INFO, "raylane.peers"):
        for _ in range(50):
            judged(headers_of(secret="guessed" * 8), calls)
            judged({CELL_HEADER: "attacker\nforged line", SIGNATURE_HEADER: "x"}, calls)
    assert calls.refused == {("eu", CallRefusal.WRONG_SIGNATURE): 50, ("", CallRefusal.UNSIGNED): 50}
    assert [record.getMessage() for record in caplog.records] == [
        "a call of cell eu was refused: wrong_signature",
        "a call of no known cell was refused: unsigned",
    ]
    assert "guessed" not in caplog.text
    assert SECRET not in caplog.text


async def test_a_door_reads_nothing_before_the_signature_and_lets_no_header_come_twice() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append("in")

    async def refuse(refusal: CallRefusal, scope: Any, receive: Any, send: Any) -> None:
        seen.append(refusal.value)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    async def send(message: Any) -> None:
        raise AssertionError("nothing is sent")

    door = PeerDoor(app, calls_of(), refuse)

    async def knock(headers: list[tuple[bytes, bytes]]) -> str:
        await door({"method": "POST", "path": PATH, "query_string": b"", "headers": headers}, receive, send)
        return seen.pop()

    headers = [(name.encode(), value.encode()) for name, value in headers_of().items()]
    assert await knock(headers) == "in"
    assert await knock([*headers, (CELL_HEADER.encode(), b"eu")]) == "unsigned"
    assert await knock([]) == "unsigned"
