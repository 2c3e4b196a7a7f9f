"""The `raylane` command. A subcommand's module is imported when the subcommand is used.

All of them together take a second and a half to import (SciPy alone half of that), `status` a fifth of a second.
"""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from cli.console import complain
from cli.extras import lacks_planning, need_planning
from cluster.errors import InputError

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
        "page": "cli.status:page",
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
        "ladder": "cli.operate:ladder",
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
    },
}
"""The subcommands as `raylane --help` groups them, and where each is: a function, or a Typer of further ones."""
COMMANDS = {name: place for commands in GROUPS.values() for name, place in commands.items()}
NEED_PLANNING = ("tune", "calibrate", "plan")
"""Importing these fails without the extra `planning`."""
COMPILED = ("simulate", "tune", "plan")
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

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Runs the command. What was given and cannot be used, or what the machine refuses (a full disk, an unreadable
        file), ends it with a line that says so; what only a mistake of ours can raise, with a traceback."""
        with _stopped_by_signals() as received:
            try:
                try:
                    return super().main(*arguments, **options)
                finally:
                    sys.stdout.flush()
            except (SystemExit, KeyboardInterrupt) as ending:
                status = ending.code if isinstance(ending, SystemExit) else 130
                raise SystemExit(128 + received[0] if received else status) from None
            except InputError as error:
                complain(error.report, error.hint)
                sys.exit(2)
            except (OSError, RecursionError, UnicodeError) as error:
                _end_with(error)


@contextmanager
def _stopped_by_signals() -> Iterator[list[int]]:
    """SIGTERM, and SIGHUP of a terminal that was closed, end the command as Ctrl-C does: with its workers, servers and
    temporary files. Yields those that came. A signal that is ignored (nohup) stays so."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background job has it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    own = threading.current_thread() is threading.main_thread()
    heeded = [one for one in (signal.SIGTERM, signal.SIGHUP) if own and signal.getsignal(one) is signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, stop)
    try:
        yield received
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)


_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _end_with(error: OSError | RecursionError | UnicodeError) -> NoReturn:
    problem = f"what was given is nested too deeply, or is no UTF-8: {error}"
    if isinstance(error, OSError):
        problem = str(error)
        problem = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or problem
        if error.errno in _WRITING and not error.filename:
            problem = f"the output cannot be written: {problem}"
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # what it still holds would fail again as Python ends
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
    with suppress(OSError):
        complain(problem)
    sys.exit(1)


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
