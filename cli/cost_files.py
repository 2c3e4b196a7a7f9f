"""Where `raylane cost` finds the files of which bills are made: a run directory, the cell on this machine, a cell at a
URL, or all cells of a cluster through any of them."""

import base64
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import requests

from cli.console import fail
from cli.gateway import ask, base_url, get, known_secret
from cli.regions import RegionView, fetch_regions, unreachable_lines
from cli.run_dir import RunDir, home, known_clusters
from deployments.accounting.bill import Bill
from deployments.accounting.store import FOLDER, CostFileStore

_TRIES = 3
_ANSWER_S = 30.0


@contextmanager
def read_store(url: str | None, run_dir: Path | None) -> Iterator[CostFileStore]:
    """The cell's files: of the run directory that is named; else those of a cell that is up; else those of the only one
    on this machine that was up."""
    if run_dir is not None:
        if not (run_dir / FOLDER).is_dir():
            fail(f"--run-dir {run_dir}: has no folder {FOLDER!r}; allowed: the run directory of a cell", code=2)
        yield _left_store(run_dir / FOLDER)
        return
    if url is not None or known_clusters():
        with tempfile.TemporaryDirectory(prefix="raylane-cost-") as folder:
            _fetch_all(base_url(url), Path(folder))
            yield CostFileStore(Path(folder))
        return
    found = sorted(path for path in home().glob(f"*/{FOLDER}") if path.is_dir()) if home().is_dir() else []
    if not found:
        fail("no cluster is up on this machine, and none has left a bill", hint="raylane up")
    if len(found) > 1:
        names = ", ".join(str(RunDir(path.parent.name).path) for path in found)
        fail(f"no cluster is up, and several have left bills; name one with --run-dir: {names}", code=2)
    yield _left_store(found[0])


def _left_store(folder: Path) -> CostFileStore:
    """The files that a cell has left here. Ends the command where one cannot be read: the bill would lack it."""
    try:
        locked = [path for path in folder.iterdir() if not os.access(path, os.R_OK) and path.exists()]
    except OSError:
        locked = [folder]
    if locked:
        fail(f"{locked[0]}: cannot be read: permission denied; needed: the user who ran the cell", code=2)
    return CostFileStore(folder)


def _fetch_all(base: str, folder: Path) -> None:
    for _ in range(_TRIES):
        if _fetch(base, folder):
            return
    fail(f"{base}: its files changed again and again while they were read")


def _fetch(base: str, folder: Path) -> bool:
    """Copies the cell's files. False: an hour was settled meanwhile, so that its facts are gone."""
    _empty(folder)
    secret = known_secret(base)
    for name, _ in ask(base, "/raylane/cost")["files"]:
        at = 0
        with (folder / Path(name).name).open("wb") as file:
            while part := _part(f"{base}/raylane/cost/{quote(name)}?offset={at}", secret):
                at += file.write(part)
        if part is None:
            return False
    return True


def _part(url: str, secret: str | None) -> bytes | None:
    """Empty at the end of the file, None where it is gone."""
    try:
        response = get(url, _ANSWER_S, secret)
    except requests.RequestException as error:
        fail(f"{url} does not answer: {error}")
    if response.status_code == requests.codes.not_found:
        return None
    if response.status_code != requests.codes.ok:
        fail(f"{url}: HTTP {response.status_code}")
    return response.content


def bill_of_all_regions(base: str, first_ns: int, last_ns: int | None) -> tuple[Bill, list[str]]:
    """The bills of all cells as one, and a line for each cell that is not in it. Each cell bills what it did, so that
    nothing is in two of them."""
    cells = fetch_regions(base, "cost_files")
    bill, missing = Bill(), [f"{line}: not in the sums" for line in unreachable_lines(cells)]
    for one in cells.regions:
        if not one.reachable:
            continue
        with tempfile.TemporaryDirectory(prefix="raylane-cost-") as folder:
            if _fetch_region(base, one, Path(folder)):
                bill = bill.plus(CostFileStore(Path(folder)).bill(first_ns, last_ns))
            else:
                missing.append(f"[red]{one.region}: its files could not be read to their ends[/]: not in the sums")
    return bill, missing


def _fetch_region(base: str, one: RegionView, folder: Path) -> bool:
    for _ in range(_TRIES):
        _empty(folder)
        if all(_fetch_file(base, one.region, name, folder) for name, _ in one.content["files"]):
            return True
        found = fetch_regions(base, "cost_files", region=one.region).regions[0]
        if not found.reachable:
            return False
        one = found
    return False


def _fetch_file(base: str, region: str, name: str, folder: Path) -> bool:
    """False: it is gone, or the cell does not answer any more."""
    at = 0
    with (folder / Path(name).name).open("wb") as file:
        while True:
            found = fetch_regions(base, "cost_part", region=region, name=name, offset=at).regions[0]
            if not found.reachable:
                return False
            part = base64.b64decode(found.content["part"])
            if not part:
                return True
            at += file.write(part)


def _empty(folder: Path) -> None:
    for old in folder.iterdir():
        old.unlink()
