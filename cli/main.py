"""The `raylane` command. A subcommand's module is imported when the subcommand is used.

All of them together take a second and a half to import (SciPy alone half of that), `status` a fifth of a second.
"""

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from cli.extras import lacks_planning, need_planning

GROUPS = {
    "Run": {
        "doctor": "cli.doctor:doctor",
        "spec": "cli.spec:spec",
        "key": "cli.operate:key",
        "up": "cli.up:up",
        "down": "cli.down:down",
        "deploy": "cli.deploy:deploy",
        "secrets": "cli.secrets:secrets",
    },
    "Observe": {
        "status": "cli.status:status",
        "top": "cli.top:top",
        "why": "cli.why:why",
        "explain": "cli.explain:explain",
        "cost": "cli.cost:cost",
        "endpoints": "cli.endpoints:endpoints",
        "replay": "cli.replay:replay_log",
    },
    "Operate": {
        "apply": "cli.operate:apply",
        "hold": "cli.operate:hold",
        "pin": "cli.operate:pin",
        "release": "cli.operate:release",
        "controls": "cli.operate:controls",
        "cordon": "cli.operate:cordon",
        "drain": "cli.operate:drain",
        "shadow": "cli.shadow:shadow",
        "models": "cli.models:models",
    },
    "Plan": {
        "bench": "cli.bench:bench",
        "traffic": "cli.traffic:traffic",
        "plan": "cli.plan:plan",
        "simulate": "cli.simulate:simulate",
        "costs": "cli.costs:costs",
        "calibrate": "cli.calibrate:calibrate",
        "rehearse": "cli.rehearse:rehearse",
        "tune": "cli.tune:tune",
        "gauntlet": "cli.gauntlet:gauntlet",
    },
}
"""The subcommands as `raylane --help` groups them, and where each is: a function, or a Typer of further ones."""
COMMANDS = {name: place for commands in GROUPS.values() for name, place in commands.items()}
NEED_PLANNING = ("gauntlet", "tune", "calibrate", "plan")
"""Importing these fails without the extra `planning`."""
COMPILED = ("simulate", "tune", "gauntlet", "plan")
"""They use the compiled core where `make install FAST=1` has built it (`planning/compiled.py`)."""
_PANELS = {name: group for group, commands in GROUPS.items() for name in commands}


class _Imported(Mapping[str, Any]):
    """The subcommands by name; each is imported when it is first read."""

    def __init__(self) -> None:
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            self._read[name] = self._import(name)
        return self._read[name]

    @staticmethod
    def _import(name: str) -> Any:
        if name in NEED_PLANNING and lacks_planning():
            return _unavailable(name)
        if name in COMPILED:
            _ask_for_compiled()
        module, _, attribute = COMMANDS[name].partition(":")
        return _as_command(name, getattr(import_module(module), attribute))

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _ask_for_compiled() -> None:
    """Before anything is imported that is compiled; for this process and its workers."""
    os.environ.setdefault("RAYLANE_COMPILED", "1")
    if import_module("planning.compiled").is_current() is False:
        hint = "make install FAST=1"
        typer.echo(
            f"The compiled core is older than its sources and is not used; to compile it again: {hint}", err=True
        )


def _as_command(name: str, found: Any) -> Any:
    if isinstance(found, typer.Typer):
        group = get_group(found)
        group.name = name
        group.rich_help_panel = _PANELS[name]
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
    alone.command(name, rich_help_panel=_PANELS[name])(found)
    return get_command(alone)


def _unavailable(name: str) -> Any:
    """Stands for a command whose packages are not installed, whatever its options."""
    alone = typer.Typer(add_completion=False)
    alone.command(
        name,
        help="Not available: needs the extra 'planning'.",
        rich_help_panel=_PANELS[name],
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(lambda: need_planning(name))
    return get_command(alone)


class _Commands(TyperGroup):
    """A group whose commands are imported late."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Imported()  # type: ignore[assignment]  # Typer only reads it


app = typer.Typer(
    cls=_Commands,
    help="Serve open-weight LLMs with Ray Serve and vLLM: lanes by prompt length, and a reason for every decision.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def _main() -> None:
    """With a callback Typer makes a group even of one command."""


if __name__ == "__main__":
    app()
