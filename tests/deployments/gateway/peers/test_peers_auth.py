"""How cells prove to each other who they are, and what is refused."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.peers.auth import CELL_HEADER, CallRefusal, Credentials, PeerDoor

SECRET = "s" * 40
CELLS = ("eu", "us", "ap")


def of(cell: str = "us", secret: str | None = SECRET, asks_certificate: bool = False) -> Credentials:
    return Credentials(cell, secret, CELLS, asks_certificate)


def test_a_peer_is_let_in_by_its_name() -> None:
    assert of("us").judge(of("eu").shown_to("us"), None) == "eu"


def test_a_token_counts_for_its_secret_sender_and_receiver_alone() -> None:
    shown = of("eu").shown_to("us")
    assert SECRET not in str(shown)
    for refused in (
        of("eu", "t" * 40).shown_to("us"),
        of("eu").shown_to("ap"),
        shown | {CELL_HEADER: "ap"},
        {CELL_HEADER: "eu"},
        of("eu", None).shown_to("us"),
        shown | {"authorization": f"Bearer {SECRET}"},
    ):
        assert of("us").judge(refused, None) is CallRefusal.WRONG_TOKEN


def test_a_stranger_and_the_cell_itself_are_no_peers() -> None:
    for sender in ("mars", "us", ""):
        assert of("us").judge(of(sender).shown_to("us"), None) is CallRefusal.UNKNOWN_CELL


@pytest.mark.parametrize("secret", [SECRET, None], ids=["beside the secret", "alone"])
def test_with_mutual_tls_a_certificate_with_the_cells_name_is_needed(secret: str | None) -> None:
    peer, shown = of("us", secret, True), of("eu", secret).shown_to("us")
    assert peer.judge(shown, None) is CallRefusal.NO_CERTIFICATE
    for names in ((), ("ap",), ("us",), ("*",), ("eu.llm.example.org",), ("EU",)):
        assert peer.judge(shown, names) is CallRefusal.WRONG_CERTIFICATE, names
    assert peer.judge(shown, ("eu.llm.example.org", "eu")) == "eu"
    if secret is not None:
        assert peer.judge(of("eu", "t" * 40).shown_to("us"), ("eu",)) is CallRefusal.WRONG_TOKEN


@given(st.dictionaries(st.sampled_from([CELL_HEADER, "authorization"]), st.sampled_from(CELLS) | st.text()))
def test_no_head_without_the_secret_is_let_in(headers: dict[str, str]) -> None:
    assert isinstance(of().judge(headers, None), CallRefusal)
    assert isinstance(of().judge(of("eu", "t" * 40).shown_to("us") | headers, None), CallRefusal)


def test_refusals_are_counted_and_logged_once_a_minute_without_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    peer = of()
    with caplog.at_level(logging.INFO, "raylane.peers"):
        for _ in range(50):
            peer.judge(of("eu", "guessed" * 8).shown_to("us"), None)
            peer.judge({CELL_HEADER: "attacker\nforged line"}, None)
    assert peer.refused == {("eu", CallRefusal.WRONG_TOKEN): 50, ("", CallRefusal.UNKNOWN_CELL): 50}
    assert [record.getMessage() for record in caplog.records] == [
        "a call of cell eu was refused: wrong_token",
        "a call of no known cell was refused: unknown_cell",
    ]
    assert "guessed" not in caplog.text
    assert SECRET not in caplog.text


async def test_a_door_reads_nothing_of_who_is_no_peer() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["raylane.sender"])

    async def refuse(refusal: CallRefusal, scope: Any, receive: Any, send: Any) -> None:
        seen.append(refusal)

    async def never(*_: Any) -> Any:
        raise AssertionError("nothing is read, nothing is sent")

    door = PeerDoor(app, of(), refuse)
    for headers in (of("eu").shown_to("us"), {}):
        await door({"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}, never, never)
    assert seen == ["eu", CallRefusal.UNKNOWN_CELL]
