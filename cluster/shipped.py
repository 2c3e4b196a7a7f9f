"""Finds the files that ship with raylane: the default specs and the demo model.

In a checkout they stand in `infra/`; a built wheel carries the same files inside the package `cluster`, since it installs no top-level `infra`.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(relative: str) -> Path:
    """The path of a shipped file or folder, named as below `infra/` (`specs/local.yaml`). Raises FileNotFoundError."""
    for root in (_PACKAGE / "_infra", _PACKAGE.parent / "infra"):
        if (root / relative).exists():
            return root / relative
    raise FileNotFoundError(f"{relative} does not ship with this installation of raylane")
