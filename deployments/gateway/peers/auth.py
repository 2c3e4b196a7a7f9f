"""How cells prove to each other who they are: by a secret that they share, or by certificates of their own authority.

With a secret, every request and every answer is signed:

    request   HMAC(secret, method, path, sender, receiver, nonce, time, SHA-256 of the body, what is said of a hop)
    answer    HMAC(secret, the request's nonce, sender, receiver, status, SHA-256 of the body)
    frame     HMAC(a key of the exchange, its number, its kind, its content), of an answer that comes in pieces

A signature is checked before a byte of the body is read, and the body against its hash. The nonce ties an answer to its
question, so that a recorded answer is none. A recorded request is refused once it is older than `CLOCK_SKEW_S`. Until
then, this gateway refuses a question whose nonce it has seen, and the core a hop whose number it has seen, at whichever
gateway (`deployments/peering`).

With mutual TLS, the name of the sender must be in its certificate. Without a secret (mutual TLS alone) the signatures
have an empty key and prove nothing; the certificate does. The secret never reaches a log, and of what is refused
nothing is logged but the cell and the reason.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("raylane.peers")

CELL_HEADER = "x-raylane-cell"
"""Who asks; who answers, in an answer."""
RECEIVER_HEADER = "x-raylane-receiver"
NONCE_HEADER = "x-raylane-nonce"
TIME_HEADER = "x-raylane-time"
"""When the call was signed: Unix time in whole seconds."""
CONTENT_HEADER = "x-raylane-content"
"""The SHA-256 of the body, in hexadecimal digits."""
SIGNATURE_HEADER = "x-raylane-signature"
HOP_HEADER = "x-raylane-hop"
"""In a request: what is said of the hop (`hop.py`). In an answer: `taken`."""

CLOCK_SKEW_S = 30
"""A call counts that was signed at most so many seconds before or after it comes, by the receiver's clock."""
_MAX_NONCES = 16_384
"""So many nonces of questions are remembered (4 MB): all of those that are not stale, up to 270 questions a second."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_TIME = re.compile(r"[0-9]{1,12}")
_HASH = re.compile(r"[0-9a-f]{64}")
MAC_BYTES = 16
"""Of a frame's signature: half of SHA-256, as RFC 2104 allows."""
_LOG_EVERY_S = 60.0


class CallRefusal(StrEnum):
    """Why a call of a peer is refused."""

    UNSIGNED = "unsigned"
    WRONG_SIGNATURE = "wrong_signature"
    STALE = "stale"
    """It was signed longer ago than the clocks of two cells may differ, or is to be signed yet."""
    REPLAYED = "replayed"
    """The same question came before."""
    NO_CERTIFICATE = "no_certificate"
    WRONG_CERTIFICATE = "wrong_certificate"
    """The sender's name is none of its DNS names."""
    UNKNOWN_CELL = "unknown_cell"
    WRONG_RECEIVER = "wrong_receiver"
    WRONG_CONTENT = "wrong_content"
    """The body is not the one that was signed."""

    @property
    def status(self) -> int:
        return 403 if self in (CallRefusal.UNKNOWN_CELL, CallRefusal.WRONG_RECEIVER) else 401


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a peer whose signature was right. `content`: what its body must hash to. `nonce`: for the answer."""

    sender: str
    nonce: str
    content: str
    hop: str = ""
    time: str = ""


def content_of(body: bytes) -> str:
    """The hash of a body, as it is signed."""
    return hashlib.sha256(body).hexdigest()


AT_ONCE_BYTES = 1 << 18
"""A longer body is hashed in a thread: 32 MiB take a tenth of a second, and the event loop has other streams."""


async def hashed(body: bytes) -> str:
    """`content_of`, beside the event loop's other work."""
    return content_of(body) if len(body) <= AT_ONCE_BYTES else await asyncio.to_thread(content_of, body)


class Signer:
    """Of one cell. `secret`: None without one. `clock`: Unix time in seconds."""

    def __init__(self, cell: str, secret: str | None, clock: Callable[[], float] = time.time) -> None:
        self.cell = cell
        self.clock = clock
        self._key = hashlib.sha256(b"raylane peers\0" + (secret or "").encode()).digest()

    def call(
        self, method: str, path: str, receiver: str, body: bytes, hop: str = ""
    ) -> tuple[Mapping[str, str], "AnswerCheck"]:
        """The headers of a call, and what its answer is checked by."""
        nonce, at, content = secrets.token_hex(16), str(int(self.clock())), content_of(body)
        headers = {
            CELL_HEADER: self.cell,
            RECEIVER_HEADER: receiver,
            NONCE_HEADER: nonce,
            TIME_HEADER: at,
            CONTENT_HEADER: content,
            SIGNATURE_HEADER: self._sign("call", method, path, self.cell, receiver, nonce, at, content, hop),
        }
        return (headers | {HOP_HEADER: hop} if hop else headers), AnswerCheck(self, receiver, nonce)

    def is_signed(self, method: str, path: str, sender: str, call: Call, signature: str) -> bool:
        """Whether a call to this cell has its sender's signature."""
        right = self._sign("call", method, path, sender, self.cell, call.nonce, call.time, call.content, call.hop)
        return hmac.compare_digest(right.encode(), signature.encode("utf-8", "replace"))

    def answer(self, call: Call, status: int, body: bytes) -> str:
        """The signature of this cell's answer."""
        return self.answer_of(self.cell, call.sender, call.nonce, status, body)

    def answer_of(self, sender: str, receiver: str, nonce: str, status: int, body: bytes) -> str:
        """The signature of an answer of `sender` to a call of `receiver`."""
        return self._sign("answer", sender, receiver, nonce, str(status), content_of(body))

    def frame_key(self, sender: str, receiver: str, nonce: str) -> bytes:
        """The key of an answer that comes in pieces."""
        return hmac.digest(self._key, "\n".join(("frames", sender, receiver, nonce)).encode(), "sha256")

    def _sign(self, *parts: str) -> str:
        """No part holds a line feed: they are names, numbers, and values of headers."""
        return hmac.digest(self._key, "\n".join(parts).encode("utf-8", "surrogateescape"), "sha256").hex()


class AnswerCheck:
    """Checks the answer to one call."""

    def __init__(self, signer: Signer, peer: str, nonce: str) -> None:
        self._signer = signer
        self._peer = peer
        self._nonce = nonce

    def is_right(self, status: int, body: bytes, signature: str) -> bool:
        """Whether the peer that was asked gave that answer to that call."""
        right = self._signer.answer_of(self._peer, self._signer.cell, self._nonce, status, body)
        return hmac.compare_digest(right.encode(), signature.encode("utf-8", "replace"))

    @property
    def frame_key(self) -> bytes:
        return self._signer.frame_key(self._peer, self._signer.cell, self._nonce)


class Calls:
    """Judges what peers send to this cell. `cells`: all of the cluster's. `asks_certificate`: with mutual TLS."""

    def __init__(self, signer: Signer, cells: Collection[str], asks_certificate: bool) -> None:
        self.signer = signer
        self.refused: Counter[tuple[str, CallRefusal]] = Counter()
        """By peer (empty: not a cell of the cluster) and reason."""
        self._cells = frozenset(cells) - {signer.cell}
        self._asks_certificate = asks_certificate
        self._logged_s: dict[str, float] = {}
        self._nonces: OrderedDict[str, None] = OrderedDict()
        """Of the last questions, the oldest first."""

    def judge(
        self, method: str, path: str, headers: Mapping[str, str], certified: Collection[str] | None
    ) -> Call | CallRefusal:
        """By the head of a call alone. `certified`: the names in the certificate of the cells' authority that its
        client showed; None without one."""
        sender = headers.get(CELL_HEADER, "")
        refusal = self._refusal(method, path, headers, certified)
        if refusal is not None:
            self.refuse(sender, refusal)
            return refusal
        return _call_of(headers)

    def refuse(self, sender: str, refusal: CallRefusal) -> None:
        """Counts a call that is refused, and logs one a minute of each peer: who guesses fills no disk."""
        known = sender if sender in self._cells else ""
        self.refused[known, refusal] += 1
        now = time.monotonic()
        if now - self._logged_s.get(known, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged_s[known] = now
            log.warning("a call of %s was refused: %s", f"cell {known}" if known else "no known cell", refusal.value)

    def _refusal(
        self, method: str, path: str, headers: Mapping[str, str], certified: Collection[str] | None
    ) -> CallRefusal | None:
        if self._asks_certificate and certified is None:
            return CallRefusal.NO_CERTIFICATE
        call, signature = _call_of(headers), headers.get(SIGNATURE_HEADER, "")
        forms = ((_NONCE, call.nonce), (_TIME, call.time), (_HASH, call.content), (_HASH, signature))
        if not all(form.fullmatch(value) for form, value in forms):
            return CallRefusal.UNSIGNED
        if call.sender not in self._cells:
            return CallRefusal.UNKNOWN_CELL
        if self._asks_certificate and certified is not None and call.sender not in certified:
            return CallRefusal.WRONG_CERTIFICATE
        if headers.get(RECEIVER_HEADER) != self.signer.cell:
            return CallRefusal.WRONG_RECEIVER
        if not self.signer.is_signed(method, path, call.sender, call, signature):
            return CallRefusal.WRONG_SIGNATURE
        if abs(self.signer.clock() - int(call.time)) > CLOCK_SKEW_S:
            return CallRefusal.STALE
        if call.nonce in self._nonces:
            return CallRefusal.REPLAYED
        if not call.hop:
            self._nonces[call.nonce] = None
            if len(self._nonces) > _MAX_NONCES:
                self._nonces.popitem(last=False)
        return None


def _call_of(headers: Mapping[str, str]) -> Call:
    names = (CELL_HEADER, NONCE_HEADER, CONTENT_HEADER, HOP_HEADER, TIME_HEADER)
    return Call(*(headers.get(name, "") for name in names))


CALL = "raylane.call"
"""Where the scope of a peer's call holds the `Call`."""

Refuse = Callable[[CallRefusal, Scope, Receive, Send], Any]


class PeerDoor:
    """The ASGI app before a page for peers. Nothing of a call is read before its signature was checked."""

    def __init__(self, app: ASGIApp, calls: Calls, refuse: Refuse) -> None:
        self._app = app
        self._calls = calls
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            known = name.decode("latin-1")
            if known in headers and known.startswith("x-raylane-"):  # which one was signed?
                headers[SIGNATURE_HEADER] = ""
                break
            headers[known] = value.decode("latin-1")
        call = self._calls.judge(scope["method"], path_of(scope), headers, certified_names(send))
        if isinstance(call, CallRefusal):
            await self._refuse(call, scope, receive, send)
            return
        scope[CALL] = call
        await self._app(scope, receive, send)


def path_of(scope: Scope) -> str:
    """The path as it is signed, with its query."""
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{scope['path']}?{query}" if query else str(scope["path"])


def certified_names(send: Send) -> Collection[str] | None:
    """The DNS names in the certificate that the client of an exchange showed, which TLS has checked; None without one.
    uvicorn has no call for that."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    certificate = None if transport is None else transport.get_extra_info("peercert")
    return [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"] if certificate else None
