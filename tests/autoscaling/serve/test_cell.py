"""One kept connection, against a real HTTP server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from autoscaling.serve.cell import Page


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.headers["authorization"] != "Bearer s":
            self._answer(401, b"no")
        elif self.path == "/cut":
            self._answer(200, b"last")
            self.close_connection = True  # without a word of it
        else:
            self._answer(200, str(self.client_address[1]).encode())

    def do_PUT(self) -> None:
        self._answer(200, self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def base() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_connection_is_kept_and_opened_again_where_it_was_closed(base: str) -> None:
    page = Page(base, "s")
    first = page.get("/")
    assert page.get("/") == first
    assert page.get("/cut") == b"last"
    assert page.get("/") != first
    assert page.ask("PUT", "/", b"{}") == b"{}"
    page.close()


def test_what_is_no_answer_is_an_error(base: str) -> None:
    page = Page(base, "wrong")
    with pytest.raises(OSError, match="HTTP 401"):
        page.get("/")
    page.close()
    with pytest.raises(OSError, match="refused"):
        Page("http://127.0.0.1:1", "s").get("/")
