"""Draws mutants of the scheduler's core and of ownership by a seed, lets mutmut run the tests against each, and says
how many died.

    python -m tests.mutation [--seed N] [--count 300] [--only deployments/scheduling/lanes.py] [--keep]

Exit status 1 when fewer than 90 % of the mutants that are not equivalent die, or when the list of survivors
(survivors.toml) is not true. A mutant that times out counts as dead: whoever runs the tests would notice.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mutmut.stats import status_by_exit_code

from tests.mutation.known import Known, read_known
from tests.mutation.population import Mutant, mutants_of
from tests.mutation.tree import copy_tree, sources, without_property_decorators

NEEDED = 0.9
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_DEAD = ("killed", "timeout", "segfault", "suspicious")


def main() -> int:
    """Draws, runs, reports."""
    options = _options()
    print(f"seed {options.seed} (repeat with SEED={options.seed})", flush=True)
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="raylane-mutants-")
        if not options.keep:
            stack.callback(shutil.rmtree, folder)
        tree = copy_tree(Path(folder))
        for file in sources():
            (tree / file).write_text(without_property_decorators((tree / file).read_text()))
        with contextlib.chdir(tree):  # mutmut reads its settings where it stands
            population = [mutant for file in sources() for mutant in mutants_of(tree, file)]
            known = read_known()
            wrong = known.without_mutant(population)
            among = [mutant for mutant in population if options.only in (None, mutant.file)]
            drawn = random.Random(options.seed).sample(among, min(options.count, len(among)))
            print(f"{len(population)} mutants, {len(drawn)} drawn", flush=True)
            fates = _fates(tree, drawn)
    score = _report(drawn, fates, known)
    wrong += known.but_dead(drawn, fates)
    for complaint in wrong:
        print(f"survivors.toml: {complaint}")
    print(f"took {(time.monotonic() - began_s) / 60:.1f} minutes; seed {options.seed}")
    return int(score < NEEDED or bool(wrong))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(10**6),
        help="which mutants are drawn (default: any)",
    )
    parser.add_argument("--count", type=int, default=300, help="how many are drawn")
    parser.add_argument("--only", default=None, help="of one file alone, as deployments/scheduling/lanes.py")
    parser.add_argument("--keep", action="store_true", help="leave the copy of the tree on disk")
    return parser.parse_args()


def _fates(tree: Path, drawn: list[Mutant]) -> dict[str, str]:
    """What became of each drawn mutant, by its name: mutmut's own words."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [
        sys.executable,
        "-c",
        "from mutmut.__main__ import cli; cli()",
        "run",
        "--max-children",
        "2",
        *(mutant.name for mutant in drawn),
    ]
    ran = subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    codes: dict[str, int | None] = {}
    for file in {mutant.file for mutant in drawn}:
        found = tree / "mutants" / f"{file}.meta"
        if found.exists():
            codes |= json.loads(found.read_text())["exit_code_by_key"]
    fates = {mutant.name: status_by_exit_code[codes.get(mutant.name)] for mutant in drawn}
    if ran.returncode != 0 or "not checked" in fates.values():
        said = "\n".join(line for line in ran.stdout.splitlines() if line[:1] not in _SPINNER)
        raise SystemExit(
            f"mutmut failed with exit status {ran.returncode} (do the tests pass without a mutant?):\n{said[-8_000:]}"
        )
    return fates


def _report(drawn: list[Mutant], fates: dict[str, str], known: Known) -> float:
    """Prints what became of them; returns the share of the dead among those that are not equivalent."""
    alive = [mutant for mutant in drawn if fates[mutant.name] not in _DEAD]
    print(f"\n{len(alive)} were not killed:")
    for mutant in sorted(alive, key=lambda mutant: (mutant.file, mutant.line)):
        print(f"{mutant}\n    {fates[mutant.name]}: {known.why(mutant)}")
    print()
    for package in sorted({mutant.file.rpartition("/")[0] for mutant in drawn}):
        _line(package, [mutant for mutant in drawn if mutant.file.startswith(f"{package}/")], fates, known)
    return _line("all", drawn, fates, known)


def _line(name: str, drawn: list[Mutant], fates: dict[str, str], known: Known) -> float:
    equivalent = {mutant.name for mutant in drawn if fates[mutant.name] not in _DEAD and known.is_equivalent(mutant)}
    count = Counter(
        "equivalent" if mutant.name in equivalent else "dead" if fates[mutant.name] in _DEAD else "survived"
        for mutant in drawn
    )
    late = sum(fates[mutant.name] == "timeout" for mutant in drawn)
    judged = len(drawn) - count["equivalent"]
    score = count["dead"] / judged if judged else 1.0
    words = (
        f"{count['dead']} killed ({late} of them timed out), {count['survived']} survived, {count['equivalent']} "
        "equivalent"
    )
    print(f"{name}: {len(drawn)} mutants, {words}: {100 * score:.1f} % of {judged}")
    return score


if __name__ == "__main__":
    sys.exit(main())
