"""The extras of the package that some commands need (`pyproject.toml`)."""

from importlib.util import find_spec

from cli.console import fail

_PLANNING = ("scipy", "plotly", "jinja2", "optuna")


def lacks_planning() -> bool:
    """Whether a package of the extra `planning` is not installed."""
    return any(find_spec(name) is None for name in _PLANNING)


def need_planning(command: str) -> None:
    """Ends the command where the extra `planning` is not installed: better before a long run than after it."""
    if lacks_planning():
        fail(f"raylane {command} needs the extra 'planning': pip install 'raylane[planning]'")
