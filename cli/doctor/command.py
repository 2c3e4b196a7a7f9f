"""The command: runs the checks, prints each with the command that mends it, and fails if something keeps raylane from working."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cli.console import console, fail
from cli.doctor.finding import Finding, Verdict
from cli.doctor.machine import check_machine
from cli.doctor.packages import check_packages
from cluster.files import shipped
from cluster.spec import SpecError, load_spec

_MARKS = {Verdict.GOOD: "[green]ok  [/]", Verdict.WARN: "[yellow]warn[/]", Verdict.BAD: "[bold red]BAD [/]"}


def doctor(spec: Annotated[Path | None, typer.Argument(help="The spec that is to run here; without one, infra/specs/local.yaml.")] = None) -> None:
    """Say what is missing on this machine, and the command that mends it."""
    try:
        cluster = load_spec(spec or shipped("specs/local.yaml"))
    except SpecError as error:
        fail(str(error), mend=f"raylane spec check {error.source}", code=2)
    verdicts = [_show(finding) for finding in _with_spinner(chain(check_machine(cluster), check_packages()))]
    if Verdict.BAD in verdicts:
        raise typer.Exit(1)


def _with_spinner(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The imports take seconds: show that something happens."""
    while True:
        with console.status("looking ..."):
            finding = next(findings, None)
        if finding is None:
            return
        yield finding


def _show(finding: Finding) -> Verdict:
    console.print(f"{_MARKS[finding.verdict]} {finding.what}: {escape(finding.found)}")
    if finding.mend is not None:
        console.print(f"       to mend it: [bold]{escape(finding.mend)}[/]")
    return finding.verdict
