"""Compiles the pure core with mypyc into build/compiled, for `infra/compile.sh`; does nothing when that is current.

Needs mypy, setuptools and a C compiler. `planning/compiled.py` says which modules, and who uses them.
"""

import json
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mypyc.build import mypycify  # noqa: E402
from setuptools import setup  # noqa: E402

from planning.compiled import FOLDER, MANIFEST, fingerprint, is_current, sources  # noqa: E402


def main() -> None:
    """Builds beside the last build and takes its place, so a build that fails leaves the last one."""
    if is_current():
        return
    os.chdir(ROOT)
    made, temporary = FOLDER.with_name("compiled.new"), FOLDER.with_name("compiled.c")
    for folder in (made, temporary):
        shutil.rmtree(folder, ignore_errors=True)
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--python-version=3.11"]
    extensions = mypycify([*options, *sources()], target_dir=str(temporary), group_name="raylane")
    # The compiler's arguments are not taken from pyproject.toml, whose packages setuptools would look for.
    setup(
        name="raylane-compiled",
        packages=[],
        ext_modules=extensions,
        script_args=["-q", "build_ext", f"--build-lib={made}", f"--build-temp={temporary}"],
    )
    (made / MANIFEST).write_text(json.dumps(fingerprint(), indent=1))
    shutil.rmtree(temporary)
    shutil.rmtree(FOLDER, ignore_errors=True)
    made.rename(FOLDER)


if __name__ == "__main__":
    main()
