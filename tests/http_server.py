"""HTTP servers of the standard library for tests, on a free port of loopback."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Writes no log. Subclasses define `do_GET` and others, and call `answer`."""

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Sends a whole answer; to HEAD without its body."""
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The base URL of a server that runs in a thread until the block ends."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
