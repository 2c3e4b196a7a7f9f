"""`--all-regions`: what all cells say, in one view; a cell that does not answer is a line, and nothing hangs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cli.console import console
from deployments.accounting.bill import Dimension
from deployments.accounting.store import BillStore, bill_in
from deployments.gateway.operators.report import PeerReport, RegionAnswer
from deployments.store import FILE_NAME, CellStore, reader
from deployments.wire import to_plain
from tests.cli.test_narrow import lane, report
from tests.commands import ran
from tests.deployments.accounting.replicas import BEGIN, ImaginedCell, imagined
from tests.http_server import Handler, listening

PEERS = (PeerReport("us", 0.42, 0.0801, 0.86, None), PeerReport("ap", None, None, 1.0, "no_digest"))


def answer(region: str, content: Any, error: str = "", age_s: float | None = 0.1) -> dict[str, Any]:
    """What the asked cell says of one region."""
    return dict(to_plain(RegionAnswer(region, f"https://{region}.example.org", not error, age_s, error, content)))


class Cell(Handler):
    """The cell that is asked. `regions`: its answers by view; `stores`: what it bills from."""

    regions: dict[str, list[dict[str, Any]]]
    stores: dict[str, Path]
    asked: list[str]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        assert parts.path == "/raylane/regions"
        assert self.headers["authorization"] == "Bearer s"
        self.asked.append(query["view"])
        found = self._cost(query) if query["view"] == "cost" else self.regions[query["view"]]
        self.answer(200, json.dumps({"home": "eu", "regions": found}).encode())

    def _cost(self, query: dict[str, str]) -> list[dict[str, Any]]:
        by, found = [Dimension(name) for name in query["by"].split(",")], []
        for region, path in self.stores.items():
            with reader(path) as file:
                found.append(answer(region, to_plain(bill_in(file, int(query["since_ns"]), None, by))))
        return [*found, answer("ap", None, "cell ap did not answer: TimeoutError", None)]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[str, type[Cell]]]:
    monkeypatch.setattr(console, "width", 200)
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYLANE_SECRET", "s")

    class Asked(Cell):
        regions: dict[str, list[dict[str, Any]]] = {}  # noqa: RUF012
        stores: dict[str, Path] = {}  # noqa: RUF012
        asked: list[str] = []  # noqa: RUF012

    with listening(Asked) as url:
        yield url, Asked


def run(cell: tuple[str, type[Cell]], *arguments: str, code: int = 0) -> str:
    result = ran(*arguments, "--all-regions", "--url", cell[0], code=code)
    return result.stdout + result.stderr


def status_of(region: str) -> dict[str, Any]:
    model = replace(report().models[0], name="m", peers=PEERS if region == "eu" else (), lanes=(lane("all"),))
    return dict(to_plain(replace(report(), models=(model,))))


def three(state: type[Cell], error: str = "no answer") -> None:
    """eu answers, us does not but has, ap never has."""
    state.regions["status"] = [
        answer("eu", status_of("eu")),
        answer("us", status_of("us"), error, 34.0),
        answer("ap", None, error, None),
    ]


def test_status_shows_each_cell_and_who_is_unreachable(cell: tuple[str, type[Cell]]) -> None:
    three(cell[1], "cell us did not answer: [ClientError]")
    text = run(cell, "status", "--once")
    assert "3 regions, 1 model, as eu sees them" in text
    assert "us is unreachable (cell us did not answer: [ClientError]); what is shown of it is 34s old" in text
    assert "ap is unreachable" in text
    assert "nothing is known of it" in text
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines if line[1:3] == ["1/4", "100"]] == ["eu", "us"]
    (known,) = [line for line in lines if line[:3] == ["eu", "us", "m"]]
    assert known[3:] == ["0.4", "s", "80", "ms", "86%", "-"]
    (unknown,) = [line for line in lines if line[:3] == ["eu", "ap", "m"]]
    assert unknown[3:] == ["none", "-", "100%", "no_digest"]


def test_top_shows_the_lanes_of_each_cell(cell: tuple[str, type[Cell]]) -> None:
    three(cell[1])
    text = run(cell, "top", "--once")
    assert [line.split()[0] for line in text.splitlines() if " all " in line] == ["eu", "us"]
    assert "ap is unreachable" in text


@pytest.mark.parametrize("command", ["status", "top"])
def test_json_is_what_the_cells_said(cell: tuple[str, type[Cell]], command: str) -> None:
    three(cell[1])
    found = json.loads(run(cell, command, "--json"))
    assert found == json.loads(json.dumps({"home": "eu", "regions": cell[1].regions["status"]}))


def test_an_answer_that_makes_no_sense_spoils_no_other_cells(cell: tuple[str, type[Cell]]) -> None:
    cell[1].regions["status"] = [answer("eu", status_of("eu")), answer("us", {**status_of("us"), "models": 7})]
    text = run(cell, "status", "--once")
    assert "us is unreachable (CellReport: Expected `array`, got `int` - at `$.models`)" in text
    assert "as eu sees them" in text


RECORD: dict[str, Any] = {
    "request_id": "r-1",
    "path": "/v1/chat/completions",
    "model": "m",
    "class": "interactive",
    "tenant": "",
}
RECORD |= {"status": 200, "outcome": "ok", "error": None, "wall_s": 1.0, "stages_s": {"lane": 0.5}}
RECORD |= {"prompt_tokens": 5, "cached_tokens": 0, "output_tokens": 7, "expected_prompt_tokens": 5}


def record(region: str, **changes: Any) -> dict[str, Any]:
    decisions = [{"at_s": 0.1, "verdict": "queued", "reason": f"of {region}"}]
    return {"record": RECORD | {"decisions": decisions} | changes}


def test_why_shows_both_cells_of_a_request_that_was_handed_over(cell: tuple[str, type[Cell]]) -> None:
    cell[1].regions["request"] = [
        answer("eu", record("eu")),
        answer("us", record("us", tenant="search")),
        answer("ap", None, "no answer", None),
    ]
    text = run(cell, "why", "r-1")
    assert text.index("in eu") < text.index("of eu") < text.index("in us") < text.index("of us")
    assert "ap is unreachable" in text
    cell[1].regions["request"] = [answer("eu", {"record": None})]
    assert "'r-1' is not among the last that ended in any cell" in run(cell, "why", "r-1", code=1)


def test_why_says_that_another_version_wrote_a_record(cell: tuple[str, type[Cell]]) -> None:
    for changes in ({"departures": [{"kind": "a kind of its own"}]}, {"decisions": [{"reason": "without a verdict"}]}):
        cell[1].regions["request"] = [answer("eu", record("eu", **changes))]
        assert "a gateway of another version wrote this record" in run(cell, "why", "r-1", code=1)


@pytest.fixture
def billed(cell: tuple[str, type[Cell]], tmp_path: Path) -> list[ImaginedCell]:
    """Two cells with bills of their own."""
    cells = []
    for region, seed in (("eu", 5), ("us", 6)):
        imagined_cell = imagined(seed, 300)
        path = cell[1].stores[region] = tmp_path / region / FILE_NAME
        store = CellStore(path)
        BillStore(store).add(imagined_cell.facts, BEGIN + 1)
        store.close()
        cells.append(imagined_cell)
    return cells


@pytest.mark.whole
def test_the_bills_of_all_cells_add_up(cell: tuple[str, type[Cell]], billed: list[ImaginedCell]) -> None:
    alone = [json.loads(ran("cost", "--json", "--run-dir", path.parent).stdout) for path in cell[1].stores.values()]
    found = json.loads(run(cell, "cost", "--json").split("\n[", 1)[0].rsplit("ap is", 1)[0])
    assert found["by"] == ["region", "home", "tenant", "class"]
    assert Fraction(found["total"]["usd"]) == sum(Fraction(one["total"]["usd"]) for one in alone) > 0
    assert sum(Fraction(row["usd"]) for row in found["rows"]) == Fraction(found["total"]["usd"])


def test_the_table_says_who_pays_and_what_is_missing(cell: tuple[str, type[Cell]], billed: list[ImaginedCell]) -> None:
    text = run(cell, "cost")
    assert "ap is unreachable (cell ap did not answer: TimeoutError); nothing is known of it: not in the sums" in text
    assert "for requests that other cells handed over: home far (--by home)" in text
    assert any(line.split("│")[1].strip() == "far" for line in text.splitlines() if line.count("│") > 4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("status", "--starts"), "--starts, --all-regions: allowed: one of them"),
        (("cost", "--run-dir", "/tmp"), "--run-dir, --all-regions: allowed: one of them"),
    ],
)
def test_what_goes_not_together_is_refused(cell: tuple[str, type[Cell]], arguments: tuple[str, ...], says: str) -> None:
    assert says in run(cell, *arguments, code=2)
