"""A hash of the code that decides: decisions are comparable only between equal ones."""

import hashlib
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_ROOMS = ("laws", "scaler", "shadow", "signals")
_FILES = (
    "../deployments/controls/control.py",
    "../deployments/engine_model/cost_model.py",
    "../deployments/engine_model/limits.py",
    "../deployments/engine_model/replica_rate.py",
)
"""What these compute with, and keep in the state that a log holds."""


@cache
def code_hash() -> str:
    """Of the laws, the scaler, the shadow, the signals, and what they compute with."""
    digest = hashlib.sha256()
    rooms = (file for room in _ROOMS for file in (_ROOT / room).rglob("*.py"))
    for file in sorted([*rooms, *(_ROOT / name for name in _FILES)]):
        digest.update(str(file.relative_to(_ROOT)).encode() if file.is_relative_to(_ROOT) else file.name.encode())
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
