"""Records what this version of raylane decides, for later versions to be held against: `python -m tests.recorded.write
FOLDER`.

The files hold inputs and decisions as plain JSON lines, from an empty state, and are the same whenever the same version
writes them. They are not written anew to make a test pass: a test that fails here has found a change of behaviour.
Where that change is wanted, write them anew in the commit that makes it, and let its message name the change and say
which decisions differ, and why.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tests.recorded.figures import figures
from tests.recorded.files import FIGURES, FOLDER, OWNERS, SCALING, SCHEDULER, write
from tests.recorded.gateways import Gateways
from tests.recorded.operations import OperatedCell
from tests.recorded.replicas import Replicas
from tests.recorded.runs import RUNS
from tests.recorded.scaling_runs import SCALING_RUNS
from tests.recorded.scheduler_adapter import Plain


def scheduler_lines(seed: int = 17) -> Iterator[Plain]:
    """All runs of the scheduler, one after the other."""
    for settings in RUNS:
        yield from OperatedCell(settings, seed).run()


def owner_lines(seed: int = 17) -> Iterator[Plain]:
    """Owners that follow one another, with the gateways around them."""
    yield from Gateways(seed, 10_000).run()


def scaling_lines(seed: int = 17) -> Iterator[Plain]:
    """All runs of the autoscaler, one after the other."""
    for run in SCALING_RUNS:
        yield from Replicas(run, seed).lines_of_run()


RECORDINGS = {SCHEDULER: scheduler_lines, OWNERS: owner_lines, SCALING: scaling_lines}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--only", choices=(*RECORDINGS, FIGURES), help="this recording alone")
    parser.add_argument("--traces", type=Path, help=f"the folder of recorded traffic, which {FIGURES} needs")
    options = parser.parse_args()
    for name in RECORDINGS if options.only is None else {options.only} & set(RECORDINGS):
        path = options.folder / name
        count = write(path, RECORDINGS[name]())
        print(f"{path}: {count} lines, {path.stat().st_size / 1e6:.2f} MB")
    if options.traces is not None and options.only in (None, FIGURES):
        text = json.dumps(list(figures(options.traces)), indent=1, allow_nan=False)
        (options.folder / FIGURES).write_text(text + "\n")


if __name__ == "__main__":
    main()
