"""What a proxy in front may read otherwise is refused, or read in one way alone. Raw sockets against the gateway's real
servers."""

import json

import pytest

from deployments.http.protocol import BadHead, check_head
from tests.deployments.gateway.rig import ASK, SECRET, Rig, openai_error
from tests.deployments.gateway.test_gateway_connections import HEALTH

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


AMBIGUOUS = {
    "no host": b"POST /v1/completions HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
    "two hosts": POST + b"host: y\r\ncontent-length: 3\r\n\r\nabc",
    "the same host twice": POST + b"host: x\r\ncontent-length: 3\r\n\r\nabc",
    "two hosts in 1.0": b"POST /v1/completions HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n",
    "a host with a space": b"GET /health HTTP/1.1\r\nhost: a b\r\n\r\n",
    "a host with a path": b"GET /health HTTP/1.1\r\nhost: a/b\r\n\r\n",
    "two authorizations": POST + b"authorization: Bearer a\r\nauthorization: Bearer b\r\ncontent-length: 3\r\n\r\nabc",
    "a length twice": POST + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "two lengths": POST + b"content-length: 3\r\ncontent-length: 5\r\n\r\nabcde",
    "a list of lengths": POST + b"content-length: 3, 3\r\n\r\nabc",
    "a length with a sign": POST + b"content-length: +3\r\n\r\nabc",
    "a negative length": POST + b"content-length: -3\r\n\r\nabc",
    "a hexadecimal length": POST + b"content-length: 0x3\r\n\r\nabc",
    "an empty length": POST + b"content-length: \r\n\r\n",
    "a length that overflows": POST + b"content-length: 99999999999999999999\r\n\r\nabc",
    "a length and chunks": POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, then more": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "compressed chunks": POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "almost chunked": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"transfer-encoding: identity\r\n\r\n",
    "a space before the colon": POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "a vertical tab": POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": b"POST /v1/completions HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded field": b"GET /health HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n",
    "bare line feeds": b"GET /health HTTP/1.1\nhost: x\n\n",
    "a bare carriage return": b"GET /health HTTP/1.1\r\nhost: x\r\nx: a\rb\r\n\r\n",
    "a zero byte": b"GET /health HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n",
    "a field without a colon": b"GET /health HTTP/1.1\r\nhost: x\r\nxyz\r\n\r\n",
    "a chunk size with 0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "a chunk size that overflows": CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a chunk size and a space": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "chunks with bare line feeds": CHUNKED + b"3\nabc\n0\n\n",
    "a chunk longer than it says": CHUNKED + b"3\r\nabcde\r\n0\r\n\r\n",
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a length that is no number": POST + b"content-length: x\r\n\r\n",
    "HTTP 9.9": b"GET / HTTP/9.9\r\n\r\n",
    "HTTP 0.9": b"GET /health\r\n\r\n",
    "HTTP 2": b"GET /health HTTP/2.0\r\nhost: x\r\n\r\n",
    "HTTP 2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
}


async def test_what_a_proxy_may_read_otherwise_is_refused(rig: Rig, subtests: pytest.Subtests) -> None:
    for name, sent in AMBIGUOUS.items():
        with subtests.test(name=name):
            client = await rig.connect()
            client.writer.write(sent + HEALTH + b"\r\n")  # what a smuggler would have behind it
            status, headers, body = await client.answer()
            assert (status, headers["connection"], openai_error(body)["code"]) == (400, "close", "invalid_http")
            assert await client.reader.read() == b""
    assert not rig.engines[0].seen


def test_heads_that_the_parser_refuses_by_itself_are_refused_here_too() -> None:
    """Should it become lenient one day."""
    host = (b"host", b"x")
    for fields in (
        [host, (b"content-length", b"3"), (b"content-length", b"3")],
        [host, (b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [host, (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
    ):
        with pytest.raises(BadHead):
            check_head("1.1", fields)
    check_head("1.1", [host, (b"transfer-encoding", b"Chunked")])
    check_head("1.1", [(b"host", b""), (b"content-length", b"3")])
    check_head("1.1", [(b"host", b"[::1]:8000")])
    check_head("1.0", [])


async def test_fields_behind_the_body_are_none_of_the_request(rig: Rig) -> None:
    """A proxy that takes `authorization` or a class out of the head has not looked at them."""
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    trailers = f"authorization: Bearer {SECRET}\r\nx-request-id: theirs\r\n\r\n".encode()
    client.writer.write(b"GET /raylane/status HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    client.writer.write(b"%x\r\n" % len(body) + body + b"\r\n0\r\n" + trailers)
    status, headers, _ = await client.answer()
    assert (status, headers["x-request-id"] == "theirs") == (401, False)
