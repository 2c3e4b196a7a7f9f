"""One page, asked for again and again over one connection that is kept: cheap enough for a hundred models in one process."""

import http.client
from urllib.parse import urlsplit

_TIMEOUT_S = 1.0


class Page:
    """Answers to GETs with the cluster's secret. `base` is a gateway's address for the cell."""

    def __init__(self, base: str, secret: str) -> None:
        self.base = base
        self._headers = {"authorization": f"Bearer {secret}"}
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> bytes:
        """The body of a 200. Raises OSError: no answer in a second, or another status."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """As `get`, with another method. A kept connection that was closed meanwhile is opened again, once."""
        kept = self._connection is not None
        try:
            return self._ask(method, path, body)
        except (http.client.RemoteDisconnected, ConnectionError):
            if not kept:
                raise
            return self._ask(method, path, body)

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None) -> bytes:
        parts = urlsplit(self.base)
        connection = self._connection or http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        try:
            headers = self._headers if body is None else {**self._headers, "content-type": "application/json"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._connection = None
            raise error if isinstance(error, OSError) else OSError(f"{self.base}{path}: {error!r}") from error
        if response.will_close:
            connection.close()
            self._connection = None
        else:
            self._connection = connection
        if response.status != 200:
            raise OSError(f"{self.base}{path}: HTTP {response.status}: {content[:200]!r}")
        return content
