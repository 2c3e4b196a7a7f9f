"""Paths in a spec: relative ones start from the folder of the spec's own file."""

from pathlib import Path

from pydantic import ValidationInfo

FOLDER = "folder"
"""The key of pydantic's validation context under which `load_spec` says where the spec's file lies."""


def beside_the_spec(path: str, info: ValidationInfo) -> str:
    """The path, absolute where the spec's folder is known. For a field's validator."""
    folder = (info.context or {}).get(FOLDER)
    return path if folder is None else str(Path(folder, Path(path).expanduser()))
