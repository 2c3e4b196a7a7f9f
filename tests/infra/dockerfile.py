"""Reads a Dockerfile and a .dockerignore as far as ours use them."""

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """`COPY`, and the rest of its line; continued lines are joined."""

    name: str
    text: str


def stages(file: Path) -> list[list[Instruction]]:
    """The instructions of each stage; each begins with its FROM."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: list[list[Instruction]] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append(Instruction(name, " ".join(rest.split())))
    return found


def texts(stage: list[Instruction], name: str) -> list[str]:
    return [one.text for one in stage if one.name == name]


def reaches_the_builder(path: str, ignored: list[str]) -> bool:
    """Whether a path of the context is sent: the last pattern that matches it or a folder above it decides."""
    parts = Path(path).parts
    above = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    sent = True
    for pattern in ignored:
        wanted = pattern.removeprefix("!").removeprefix("**/")
        candidates = [*parts, *above] if "**/" in pattern else above
        if any(fnmatch.fnmatchcase(one, wanted) for one in candidates):
            sent = pattern.startswith("!")
    return sent


def ignore_patterns(file: Path) -> list[str]:
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]
