"""Files written in one move: a reader sees the old file or the new one, never a part. And whether a place is one where such a file can lie."""

import errno
import os
import stat
import tempfile
from pathlib import Path


def is_special(path: Path) -> bool:
    """Whether something is there that is neither a regular file nor a link to one or to nothing yet: a folder, a device, a pipe, a link in a circle.
    Replacing it would destroy it."""
    return os.path.lexists(place := os.path.realpath(path)) and not os.path.isfile(place)


def write_whole(path: Path, text: str) -> None:
    """Writes it beside the file and renames it; a link stays, and what it names is replaced. Raises OSError."""
    if is_special(path):
        raise OSError(errno.EINVAL, "there is something that is no regular file", str(path))
    target = Path(os.path.realpath(path))
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
    draft = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            draft = Path(file.name)
            file.write(text)
        draft.chmod(mode)
        draft.replace(target)
    except BaseException:
        if draft is not None:
            draft.unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
