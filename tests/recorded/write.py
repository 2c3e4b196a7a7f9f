"""Records what this version of raylane decides, for later versions to be held against: `python -m tests.recorded.write
FOLDER`.

The files hold inputs and decisions as plain JSON lines, from an empty state, and are the same whenever the same version
writes them. They are not written anew to make a test pass: a test that fails here has found a change of behaviour.
Where that change is wanted, write them anew in the commit that makes it, and let its message name the change and say
which decisions differ, and why.

The inputs are those of the present files, drawn once from cells with everything that goes wrong in one (the programs
that drew them are in the history of this folder). What ends a lease that this version has not given is left out; the
tests say what a recording must still show.
"""

import argparse
import json
from pathlib import Path

from tests.recorded import owner_adapter, scaling_adapter, scheduler_adapter
from tests.recorded.figures import figures
from tests.recorded.files import FIGURES, FOLDER, OWNERS, SCALING, SCHEDULER, recorded, write

RECORDINGS = {SCHEDULER: scheduler_adapter.decided, OWNERS: owner_adapter.told, SCALING: scaling_adapter.decided}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--only", choices=(*RECORDINGS, FIGURES), help="this recording alone")
    parser.add_argument("--traces", type=Path, help=f"the folder of recorded traffic, which {FIGURES} needs")
    options = parser.parse_args()
    for name in RECORDINGS if options.only is None else {options.only} & set(RECORDINGS):
        path = options.folder / name
        count = write(path, RECORDINGS[name](list(recorded(name))))
        print(f"{path}: {count} lines, {path.stat().st_size / 1e6:.2f} MB")
    if options.traces is not None and options.only in (None, FIGURES):
        text = json.dumps(list(figures(options.traces)), indent=1, allow_nan=False)
        (options.folder / FIGURES).write_text(text + "\n")


if __name__ == "__main__":
    main()
