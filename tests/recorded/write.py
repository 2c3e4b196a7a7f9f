"""Records what this version of raylane decides, for later versions to be held against: `python -m tests.recorded.write PATH`.

The files hold inputs and decisions as plain JSON lines, from an empty state, and are the same whenever the same version writes them. They are not
written anew to make a test pass: a test that fails here has found a change of behaviour. Where that change is wanted, write them anew in the
commit that makes it, and let its message name the change and say which decisions differ, and why.
"""

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.recorded.operations import OperatedCell
from tests.recorded.runs import RUNS
from tests.recorded.scheduler_adapter import Plain

FOLDER = Path(__file__).parent
SCHEDULER = "scheduler.jsonl.gz"


def write(path: Path, lines: Iterable[Plain]) -> int:
    """Writes JSON lines, compressed, without the time of day. Returns how many."""
    with path.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed:
        return sum(packed.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n") > 0 for line in lines)


def scheduler_lines(seed: int = 17) -> Iterator[Plain]:
    """All runs, one after the other."""
    for settings in RUNS:
        yield from OperatedCell(settings, seed).run()


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    folder = parser.parse_args().folder
    path = folder / SCHEDULER
    print(f"{path}: {write(path, scheduler_lines())} lines, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
