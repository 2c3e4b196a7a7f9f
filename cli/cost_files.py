"""Where `raylane cost` finds a bill: in a run directory, at the cell on this machine or at a URL, or at all cells of a
cluster through any of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cli.console import fail
from cli.gateway import ask, base_url
from cli.regions import fetch_regions, unreachable_lines
from cli.run_dir import RunDir, home, known_clusters
from deployments.accounting.bill import Bill, Dimension
from deployments.accounting.store import read_bill
from deployments.store import FILE_NAME, CellStoreError
from deployments.wire import WireError, from_plain

_ANSWER_S = 60.0


def bill_of_one_cell(
    url: str | None, run_dir: Path | None, first_ns: int, last_ns: int | None, by: Sequence[Dimension]
) -> Bill:
    """The bill of the cell whose run directory is named; else of one that is up; else of the only one on this machine
    that was up."""
    if run_dir is not None:
        if not (run_dir / FILE_NAME).is_file():
            fail(f"--run-dir {run_dir}: has no {FILE_NAME}; allowed: the run directory of a cell", code=2)
        return _left(run_dir / FILE_NAME, first_ns, last_ns)
    if url is not None or known_clusters():
        base = base_url(url)
        return _bill(base, ask(base, f"/raylane/cost?{urlencode(_query(first_ns, last_ns, by))}", timeout_s=_ANSWER_S))
    found = sorted(home().glob(f"*/{FILE_NAME}")) if home().is_dir() else []
    if not found:
        fail("no cluster is up on this machine, and none has left a bill", hint="raylane up")
    if len(found) > 1:
        names = ", ".join(str(RunDir(path.parent.name).path) for path in found)
        fail(f"no cluster is up, and several have left bills; name one with --run-dir: {names}", code=2)
    return _left(found[0], first_ns, last_ns)


def bill_of_all_regions(
    base: str, first_ns: int, last_ns: int | None, by: Sequence[Dimension]
) -> tuple[Bill, list[str]]:
    """The bills of all cells as one, and a line for each cell that is not in it. Each cell bills what it did, so that
    nothing is in two of them."""
    cells = fetch_regions(base, "cost", **_query(first_ns, last_ns, by))
    bill, missing = Bill(), [f"{line}: not in the sums" for line in unreachable_lines(cells)]
    for one in cells.regions:
        if one.reachable:
            bill = bill.plus(_bill(base, one.content))
    return bill, missing


def _query(first_ns: int, last_ns: int | None, by: Sequence[Dimension]) -> dict[str, object]:
    return {"since_ns": first_ns, "by": ",".join(by), **({} if last_ns is None else {"until_ns": last_ns})}


def _left(path: Path, first_ns: int, last_ns: int | None) -> Bill:
    """What a cell has left here."""
    try:
        return read_bill(path, first_ns, last_ns)
    except (OSError, CellStoreError) as error:
        fail(f"{path}: cannot be read: {error}", code=2)


def _bill(base: str, given: Any) -> Bill:
    try:
        return from_plain(given, Bill)
    except WireError as error:
        fail(f"{base}: no bill: {error}")
