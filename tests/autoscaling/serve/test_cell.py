"""What the autoscaler asks of a model's owner, against a real HTTP server."""

import json
from collections.abc import Iterator

import pytest

from autoscaling.serve.cell import CellClient
from deployments.cell.listing import Listing
from deployments.cell.owners import Ownership
from tests.http_server import Handler, listening


class Owner(Handler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers["authorization"] != "Bearer s":
            self.answer(401, b"no")
        else:
            self.answer(200, str(self.client_address[1]).encode())

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer(200 if order["kind"] == "rollback" else 400, b"{}")
        self.close_connection = True  # without a word of it


@pytest.fixture
def base() -> Iterator[str]:
    with listening(Owner) as url:
        yield url


@pytest.fixture
def client() -> Iterator[CellClient]:
    made = CellClient("demo")
    made._session.headers["authorization"] = "Bearer s"
    yield made
    made.close()


def owned_at(url: str) -> Listing:
    return Listing(1, (), None, owners=(Ownership("demo", 1, "g", url),))


def test_the_connection_is_kept_and_opened_again_where_it_was_closed(base: str, client: CellClient) -> None:
    client.listing = owned_at(base)
    first = client.spec()
    assert client.spec() == first
    client.roll_back("it burned")
    assert client.spec() != first


def test_what_is_no_answer_is_an_error(base: str, client: CellClient) -> None:
    with pytest.raises(OSError, match="no gateway owns model 'demo'"):
        client.spec()
    client.listing = owned_at("http://127.0.0.1:1")
    with pytest.raises(OSError, match="refused"):
        client.spec()
    client.listing = owned_at(base)
    client._session.headers["authorization"] = "Bearer wrong"
    with pytest.raises(OSError, match="HTTP 401"):
        client.spec()
