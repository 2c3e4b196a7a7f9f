"""Reads a traffic file, with errors that name key, value and what is allowed."""

from dataclasses import dataclass
from pathlib import Path

from cluster.spec import SpecError, parse_section
from planning.workload.trace import TraceError
from planning.workload.traffic.file import Traffic

SUFFIXES = (".yaml", ".yml")
"""A file of such a name is a traffic file, any other one a trace."""


@dataclass(eq=False)
class TrafficError(TraceError):
    """A traffic file that cannot be used. `problems` holds one line each."""

    source: str
    problems: list[str]

    def __str__(self) -> str:
        return f"{self.source} is not a usable traffic file:\n  " + "\n  ".join(self.problems)


def load_traffic(path: Path) -> Traffic:
    """The traffic file at `path`; its own paths are relative to it. Raises TrafficError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrafficError(str(path), [f"cannot be read: {error}"]) from error
    traffic = parse_traffic(text, str(path))
    if traffic.servegen is None:
        return traffic
    described = traffic.servegen.model_copy(update={"folder": path.parent / traffic.servegen.folder})
    return traffic.model_copy(update={"servegen": described})


def parse_traffic(text: str, source: str = "traffic") -> Traffic:
    """The traffic file in a YAML text. Raises TrafficError."""
    try:
        return parse_section(Traffic, text, source)
    except SpecError as error:
        raise TrafficError(source, error.problems) from error
