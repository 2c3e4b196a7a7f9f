"""`raylane cost` on a run directory: what it prints, and how it refuses."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from deployments.accounting.bill import HOUR_NS, hour_name
from deployments.accounting.store import BillStore
from deployments.store import FILE_NAME, CellStore
from tests.commands import ran
from tests.deployments.accounting.replicas import BEGIN, ImaginedCell, imagined


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ImaginedCell]:
    """The run directory of a cell that is down: one hour is settled, the others are not."""
    run_dir, cell = tmp_path_factory.mktemp("cell"), imagined(5, 400)
    store = CellStore(run_dir / FILE_NAME)
    bills = BillStore(store)
    bills.add(cell.facts, BEGIN + 1)
    bills.close_hour(BEGIN)
    bills.settle(BEGIN, bills.computed(BEGIN), cell.facts)
    store.close()
    return run_dir, cell


def run(cell: tuple[Path, ImaginedCell], *arguments: str) -> str:
    return ran("cost", "--run-dir", cell[0], *arguments).stdout


def refused(*arguments: str) -> str:
    return " ".join(ran("cost", *arguments, code=2).output.split())


@pytest.mark.whole
@pytest.mark.parametrize("by", ["", "tenant", "hour,class", "tenant,class,model,group,region,home,hour"])
def test_json_and_csv_add_up_and_say_the_same(cell: tuple[Path, ImaginedCell], by: str) -> None:
    record = json.loads(run(cell, "--json", "--by", by))
    rows = list(csv.DictReader(io.StringIO(run(cell, "--csv", "--by", by))))
    assert sum(Fraction(row["usd"]) for row in record["rows"]) == Fraction(record["total"]["usd"])
    assert sum(Decimal(row["usd"]) for row in rows) == Decimal(record["total"]["usd_shown"])
    assert [row["usd"] for row in rows] == [row["usd_shown"] for row in record["rows"]]
    assert [row["share"] for row in rows] == [row["share"] for row in record["rows"]]
    assert sum(int(row["ns"]) for row in rows) == record["total"]["ns"]


def test_the_bill_is_that_of_the_replicas(cell: tuple[Path, ImaginedCell]) -> None:
    """Those of whom the settled hour's facts told."""
    settled = json.loads(run(cell, "--json", "--until", hour_name(BEGIN + HOUR_NS)))
    lived = {one.at_ns for one in cell[1].facts if hasattr(one, "group") and hasattr(one, "replica_id")}
    assert 0 < settled["total"]["ns"] <= HOUR_NS * len(lived)
    assert settled["basis"]["m@default"].startswith("the scheduler's cost")


def test_the_table_has_a_total_and_says_how_work_was_shared(cell: tuple[Path, ImaginedCell]) -> None:
    text = run(cell)
    assert "total" in text
    assert "idle" in text
    assert "the scheduler's cost" in text
    assert "$/M in" in text


@pytest.mark.whole
@pytest.mark.parametrize("columns", [None, "80"])
def test_no_value_of_the_table_is_cut_off(cell: tuple[Path, ImaginedCell], columns: str | None) -> None:
    """In a file, and on a narrow terminal, where labels go on in the next line."""
    by = "tenant,class,model,group,region,home,hour"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "cost", "--run-dir", str(cell[0]), "--by", by],
        capture_output=True,
        text=True,
        env=environment | ({} if columns is None else {"COLUMNS": columns}),
        check=True,
    )
    assert "…" not in done.stdout
    total = Decimal(json.loads(run(cell, "--json", "--by", by))["total"]["usd_shown"])
    rows = [[part.strip() for part in line.split("│")] for line in done.stdout.splitlines() if "│" in line]
    assert [row for row in rows if "total" in row and f"{total:,}" in row]
    if columns is None:
        assert all(len(row) == 7 + 1 + 9 for row in rows)


def test_a_time_without_replicas_says_so(cell: tuple[Path, ImaginedCell]) -> None:
    assert "nothing is known" in run(cell, "--since", "2001-01-01", "--until", "2001-01-02")


def test_the_page_stands_alone(cell: tuple[Path, ImaginedCell], tmp_path: Path) -> None:
    out = tmp_path / "cost.html"
    run(cell, "--out", str(out))
    page = out.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "replica-hours" in page
    assert "nothing is loaded" in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--by", "tennant"), "--by 'tennant': unknown; allowed: tenant, class, model, group, region, home, hour"),
        (("--by", "tenant,tenant"), "--by 'tenant': appears twice"),
        (("--since", "yesterday"), "--since 'yesterday': allowed: an hour as 2026-11-23T00"),
        (("--since", "-3h"), "--since '-3h': allowed"),
        (("--until", "2026-13-01"), "--until '2026-13-01': allowed"),
        (("--since", "1h", "--until", "2h"), "allowed: a beginning before the end"),
        (("--since", "2999-01-01"), "allowed: a beginning before the end, and before now"),
        (("--csv", "--json"), "--csv, --json: allowed: one of them"),
        (("--run-dir", "/nowhere"), "--run-dir /nowhere: has no cell.sqlite"),
        (("--out", "/nowhere/page.html"), "--out /nowhere/page.html"),
    ],
)
def test_other_input_is_refused_by_name(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(*arguments)


@pytest.mark.whole
def test_what_cannot_be_read_is_no_empty_bill(cell: tuple[Path, ImaginedCell], tmp_path: Path) -> None:
    """Root may read everything, so that this right is taken away first."""
    drop = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    if drop and shutil.which("setpriv") is None:
        pytest.skip("runs as root, and setpriv is not installed")
    path = shutil.copy(cell[0] / FILE_NAME, tmp_path / FILE_NAME)
    path.chmod(0)
    command = [*drop, sys.executable, "-m", "cli.main", "cost", "--run-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"{path}: cannot be read: " in " ".join(done.stderr.split())


def test_what_is_no_store_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("no store")
    assert f"{tmp_path / FILE_NAME}: file is not a database; allowed: the cell.sqlite of a cell" in refused(
        "--run-dir", str(tmp_path)
    )


def test_a_machine_without_any_cell_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path))
    assert "no cluster is up on this machine, and none has left a bill" in " ".join(ran("cost", code=1).output.split())


def test_the_only_cell_that_was_up_is_read_where_several_are_named(
    cell: tuple[Path, ImaginedCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path))
    (tmp_path / "one").symlink_to(cell[0])
    ran("cost", "--json")
    (tmp_path / "other").symlink_to(cell[0])
    assert "name one with --run-dir" in refused()
