"""One kept connection, against a real HTTP server."""

from collections.abc import Iterator

import pytest

from autoscaling.serve.cell import Page
from tests.http_server import Handler, listening


class Kept(Handler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers["authorization"] != "Bearer s":
            self.answer(401, b"no")
        elif self.path == "/cut":
            self.answer(200, b"last")
            self.close_connection = True  # without a word of it
        else:
            self.answer(200, str(self.client_address[1]).encode())

    def do_PUT(self) -> None:
        self.answer(200, self.rfile.read(int(self.headers["content-length"])))


@pytest.fixture
def base() -> Iterator[str]:
    with listening(Kept) as url:
        yield url


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
