"""What a re-planner's cells make of answers that no gateway gives: a load balancer may stand before it."""

from collections.abc import Iterator

import pytest

from cli.replan.cells import Cells
from planning.replan import SiteBounds, SiteKey
from planning.replan.result import ReplanReason
from tests.http_server import Handler, listening

BOUNDS = SiteBounds(SiteKey("eu", "m"), 1, 2, 3, 2, ReplanReason.DEMAND, 1.0)
CASES: list[tuple[int, bytes, str]] = [
    (503, b'{"error": "no healthy upstream"}', "no healthy upstream"),
    (503, b'["down"]', "HTTP 503"),
    (503, b'{"error": {"code": 5}}', "HTTP 503"),
    (200, b'"ok"', "not the page of a cell"),
    (200, b"[1]", "not the page of a cell"),
    (502, b"<html>", "does not answer as a raylane gateway"),
    (401, b"{}", "set RAYLANE_SECRET_EU"),
]


class Balancer(Handler):
    """Its paths begin with the number of the case."""

    def do_GET(self) -> None:
        status, body, _ = CASES[int(self.path.split("/")[1])]
        self.answer(status, body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()


@pytest.fixture(scope="module")
def balancer() -> Iterator[str]:
    with listening(Balancer) as url:
        yield url


@pytest.mark.parametrize("number", range(len(CASES)))
def test_an_answer_that_is_no_gateways_is_an_error_of_its_region(balancer: str, number: int) -> None:
    cells, says = Cells({"eu": f"{balancer}/{number}"}), CASES[number][2]
    cells.look()
    assert says in cells.by_region["eu"].error
    failed = cells.bound({"eu": (BOUNDS,)}, 60.0, "test")
    assert failed.keys() == {"eu"}
    assert says in failed["eu"]
    assert cells.states(0.0) == {}
