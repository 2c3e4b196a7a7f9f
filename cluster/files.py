"""Files: those that ship with raylane, text and JSON files that are written in one move, and JSON files with a pydantic
schema.

The shipped files (default specs, demo model) stand in `infra/` of a checkout; a built wheel carries them inside the
package `cluster`, since it installs no top-level `infra`. A file that is written in one move is never read in part: a
reader sees the old one or the new one.
"""

import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

_PACKAGE = Path(__file__).resolve().parent


def shipped(relative: str) -> Path:
    """The path of a shipped file or folder, named as below `infra/` (`specs/local.yaml`). Raises FileNotFoundError."""
    for root in (_PACKAGE / "_infra", _PACKAGE.parent / "infra"):
        if (root / relative).exists():
            return root / relative
    raise FileNotFoundError(f"{relative} does not ship with this installation of raylane")


def is_special(path: Path) -> bool:
    """Whether something is there that is neither a regular file nor a link to one or to nothing yet: a folder, a
    device, a pipe, a link in a circle. Replacing it would destroy it."""
    return os.path.lexists(place := os.path.realpath(path)) and not os.path.isfile(place)


def write_whole(path: Path, text: str) -> None:
    """Writes it beside the file and renames it; a link stays, and what it names is replaced. Raises OSError."""
    if is_special(path):
        raise OSError(errno.EINVAL, "the path exists and is not a regular file", str(path))
    target = Path(os.path.realpath(path))
    _replace(target, text, stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask())


def write_private(path: Path, text: str) -> None:
    """Writes a file that its owner alone can read, in one move; when it returns, it is on the disk. Raises OSError."""
    _replace(path, text, 0o600, on_disk=True)


def _replace(path: Path, text: str, mode: int, on_disk: bool = False) -> None:
    draft = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            draft = Path(file.name)
            file.write(text)
            if on_disk:
                file.flush()
                os.fsync(file.fileno())
        draft.chmod(mode)
        draft.replace(path)
    except BaseException as error:
        if draft is not None:
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):  # of a full disk it names no file, else the draft
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def kept_text(folder: Path | None, name: str) -> str:
    """The content of a file in a folder, which is made where it is missing; empty where there is none. Raises
    OSError."""
    if folder is None:
        return ""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


ContentT = TypeVar("ContentT")

_SHOWN = 80
"""Characters of a value: longer ones are whole sections, whose message says what is wrong in them."""


def read_json(path: Path, kind: type[ContentT], error_kind: type[ValueError]) -> ContentT:
    """The file's content. Raises `error_kind`."""
    try:
        return TypeAdapter(kind).validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise error_kind(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise error_kind(f"{path}: is no JSON: byte {error.start} is not UTF-8") from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        value = (
            "" if problem["type"] == "missing" or len(repr(problem["input"])) > _SHOWN else f" = {problem['input']!r}"
        )
        raise error_kind(f"{path}: {key}{value}: {problem['msg']}") from None


def write_json(path: Path, content: object) -> None:
    """Writes it, in one move: nobody reads half a file. Raises OSError."""
    write_whole(path, json.dumps(TypeAdapter(type(content)).dump_python(content, mode="json"), indent=2) + "\n")


def sync_to_disk(path: Path) -> None:
    """The file, or the folder's list of names, survives a loss of power. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that knows no such call for folders
            raise
    finally:
        os.close(descriptor)
