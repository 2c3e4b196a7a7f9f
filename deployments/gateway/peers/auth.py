"""How cells prove to each other who they are: by a secret that they share, by certificates of their own authority, or
by both.

With a secret, a call has a bearer token, HMAC(secret, sender, receiver): it names the sender, and what one cell gets is
of no use at another. With mutual TLS, the name of the sender must be in its certificate. Links beyond loopback are TLS,
which keeps tokens and calls from who listens, and proves who answers. The secret never reaches a log, and of what is
refused nothing is logged but the cell and the reason.
"""

import hmac
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("raylane.peers")

CELL_HEADER = "x-raylane-cell"
"""Who asks; who answers, in an answer."""
SENDER = "raylane.sender"
"""Where the scope of a peer's call names its cell."""
_LOG_EVERY_S = 60.0


class CallRefusal(StrEnum):
    """Why a call of a peer is refused."""

    UNKNOWN_CELL = "unknown_cell"
    WRONG_TOKEN = "wrong_token"
    """There is none, or it is of another secret, sender or receiver."""
    NO_CERTIFICATE = "no_certificate"
    WRONG_CERTIFICATE = "wrong_certificate"
    """The sender's name is none of its DNS names."""

    @property
    def status(self) -> int:
        return 403 if self is CallRefusal.UNKNOWN_CELL else 401


class Credentials:
    """Of one cell: what it shows its peers, and how it judges what they show. `cells`: all of the cluster's. `secret`:
    None without one. `asks_certificate`: with mutual TLS."""

    def __init__(self, cell: str, secret: str | None, cells: Collection[str], asks_certificate: bool) -> None:
        self.cell = cell
        self.refused: Counter[tuple[str, CallRefusal]] = Counter()
        """By peer (empty: not a cell of the cluster) and reason."""
        self._secret = secret
        self._cells = frozenset(cells) - {cell}
        self._asks_certificate = asks_certificate
        self._logged_s: dict[str, float] = {}

    def shown_to(self, peer: str) -> dict[str, str]:
        """The headers of a call."""
        shown = {CELL_HEADER: self.cell}
        return shown if self._secret is None else shown | {"authorization": f"Bearer {self._token(self.cell, peer)}"}

    def judge(self, headers: Mapping[str, str], certified: Collection[str] | None) -> str | CallRefusal:
        """The sender of a call, by its head alone. `certified`: the names in the certificate of the cells' authority
        that its client showed; None without one."""
        sender = headers.get(CELL_HEADER, "")
        refusal = self._refusal(sender, headers.get("authorization", ""), certified)
        if refusal is None:
            return sender
        known = sender if sender in self._cells else ""
        self.refused[known, refusal] += 1
        now = time.monotonic()
        if now - self._logged_s.get(known, -_LOG_EVERY_S) >= _LOG_EVERY_S:  # who guesses fills no disk
            self._logged_s[known] = now
            log.warning("a call of %s was refused: %s", f"cell {known}" if known else "no known cell", refusal.value)
        return refusal

    def _refusal(self, sender: str, given: str, certified: Collection[str] | None) -> CallRefusal | None:
        if self._asks_certificate and certified is None:
            return CallRefusal.NO_CERTIFICATE
        if sender not in self._cells:
            return CallRefusal.UNKNOWN_CELL
        if self._asks_certificate and certified is not None and sender not in certified:
            return CallRefusal.WRONG_CERTIFICATE
        if self._secret is not None:
            right = f"Bearer {self._token(sender, self.cell)}"
            if not hmac.compare_digest(right.encode(), given.encode("utf-8", "replace")):
                return CallRefusal.WRONG_TOKEN
        return None

    def _token(self, sender: str, receiver: str) -> str:
        """Names hold no line feed."""
        return hmac.digest(
            (self._secret or "").encode(), f"raylane peers\n{sender}\n{receiver}".encode(), "sha256"
        ).hex()


Refuse = Callable[[CallRefusal, Scope, Receive, Send], Awaitable[None]]


@dataclass(eq=False)
class PeerDoor:
    """The ASGI app before a page for peers. Nothing of a call is read before its head was judged."""

    app: ASGIApp
    credentials: Credentials
    refuse: Refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        sender = self.credentials.judge(headers, certified_names(send))
        if isinstance(sender, CallRefusal):
            await self.refuse(sender, scope, receive, send)
            return
        scope[SENDER] = sender
        await self.app(scope, receive, send)


def certified_names(send: Send) -> Collection[str] | None:
    """The DNS names in the certificate that the client of an exchange showed, which TLS has checked; None without one.
    uvicorn has no call for that."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    certificate = None if transport is None else transport.get_extra_info("peercert")
    return [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"] if certificate else None
