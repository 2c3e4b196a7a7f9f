"""Why an engine core did not start. It runs in a process of its own and tells its log, not its parent: the parent only learns that it failed.

Both write to the same streams (vLLM logs to standard output), which under Ray are files: there its words are looked up again.
"""

import os
import re
import sys
from pathlib import Path

_LAST_BYTES = 1 << 18
_SAID = re.compile(r"^\(EngineCore[^)]*\).*?\s((?:\w+\.)*\w*(?:Error|Exception): \S.*)$", re.MULTILINE)


def root_cause(log: str) -> str | None:
    """The last error that an engine core told in it, with its type; None where there is none."""
    found = _SAID.findall(log)
    return str(found[-1]).strip() if found else None


def own_words() -> str:
    """The ends of what this process and its children wrote to standard output and error; without those that are no files."""
    sys.stdout.flush()
    sys.stderr.flush()
    return "\n".join(_end_of(descriptor) for descriptor in (1, 2))


def _end_of(descriptor: int) -> str:
    try:
        file = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _LAST_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
