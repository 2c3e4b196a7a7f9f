"""Digests of bodies: by them a client's retry is known to be the same request (`scheduling/suspects.py`), and logs name requests without their text.

They are keyed with the cluster's secret: who reads a log and guesses a prompt cannot tell whether it was sent. All gateways of a cell make the same.
"""

import hashlib
import hmac

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
