"""Reads bodies beside the event loop's other work: a small one at once, a large one in a thread, so that it never
holds up the streams of others."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deployments.openai.endpoints import BodyKind
from deployments.openai.inquiry import UNSALTED, Inquiry, read_inquiry
from deployments.openai.prefix import SaltOf, with_salt

_BYTES = 8


class Digests:
    """Of one cell."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"raylane body digest", "sha256")

    def of(self, path: str, body: bytes) -> str:
        """Of a request to `path`, with its body as its client sent it: 16 hexadecimal digits."""
        digest = hashlib.blake2b(path.encode() + b"\0", digest_size=_BYTES, key=self._key)
        digest.update(body)
        return digest.hexdigest()


DigestOf = Callable[[bytes], str]

_AT_ONCE_BYTES = 1 << 18
"""A body of no more bytes takes at most some milliseconds, and handing it to a thread a tenth of one."""


@dataclass(frozen=True, slots=True)
class BodyReading:
    """What was read, the body for the engine (as it came, but for a salt), the digest of the body as it came, and the
    seconds of CPU that it took."""

    inquiry: Inquiry
    body: bytes
    digest: str
    cpu_s: float


class Reader:
    """One thread, and not several: where it holds the interpreter's lock the loop waits for it, and would for each of
    them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "body-reader")

    async def read(
        self, kind: BodyKind, body: bytes, max_values: int, salt_of: SaltOf | None, digest_of: DigestOf
    ) -> BodyReading:
        """The inquiry in a body, and the body to send on. Raises ApiError."""
        if len(body) <= _AT_ONCE_BYTES:
            return _read(kind, body, max_values, salt_of, digest_of)
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, _read, kind, body, max_values, salt_of, digest_of
        )


def _read(kind: BodyKind, body: bytes, max_values: int, salt_of: SaltOf | None, digest_of: DigestOf) -> BodyReading:
    began = time.thread_time()
    inquiry, digest = read_inquiry(kind, body, max_values, salt_of), digest_of(body)
    if salt_of is not None and inquiry.kind not in UNSALTED and inquiry.cache_salt is not None:
        body = with_salt(body, inquiry.cache_salt)
    return BodyReading(inquiry, body, digest, time.thread_time() - began)
