"""Sentences on how replicas start, for `raylane up`, `status` and `explain`: the phase that one is in, where the time
of a start went, and why one failed."""

import time
from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from cli.console import shown_span
from deployments.starts.phases import Phase
from deployments.starts.start import FailingModel

_HINTS = {
    Phase.NODE: "is there a node with room? `raylane status`",
    Phase.ENVIRONMENT: "read the log; `raylane doctor SPEC` checks the installation",
    Phase.FETCH: "check the model's `source` and the credentials of its store: `raylane models pull SPEC`",
    Phase.LOAD: "check the model's files and settings; the log has the engine's own error",
}
_HINT = "read the log; if memory ran out, lower `settings.max_model_len` or the KV cache"


def hint_of(phase: str) -> str:
    """What to do about a start that failed in that phase."""
    return _HINTS.get(Phase(phase), _HINT)


def parts_of(seconds: Mapping[str, float]) -> str:
    """Where the time went, in the phases' order; those of less than 50 ms are left out, and named when all are."""
    parts = [f"{phase} {seconds[phase]:.1f} s" for phase in Phase if seconds.get(phase, 0.0) >= 0.05]
    return ", ".join(parts) or "nothing took longer than 50 ms"


def starting_lines(model: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """A line for each replica that starts: the phase, since when, how far a fetch is, and since when it was asked
    for."""
    now = time.time()
    return [
        f"[yellow]{escape(names.get(start['replica_id'], start['replica_id']))} starts: {start['phase']} for "
        f"{shown_span(now - start['since_unix_s'])}{_fetched(start)}, {shown_span(now - start['asked_unix_s'])} in "
        "all[/]"
        for start in model.get("starting", ())
    ]


def _fetched(start: Mapping[str, Any]) -> str:
    """The bytes that are there of all, and the rate."""
    fetching = start.get("fetching")
    if not fetching or not fetching["total_bytes"]:
        return ""
    there, total = (fetching[name] / (1 << 30) for name in ("there_bytes", "total_bytes"))
    return f" ({there:.2f} of {total:.2f} GiB, {fetching['bytes_per_s'] / 1e6:.0f} MB/s)"


def failing_lines(model: Mapping[str, Any]) -> list[str]:
    """Why a model does not start, and what to do; nothing where it does."""
    failing = model.get("failing_start")
    return [] if not failing else [f"[red]{escape(line)}[/]" for line in _failing_lines(failing)]


def _failing_lines(failing: Mapping[str, Any]) -> list[str]:
    count = failing["failures"]
    wait_s = failing["retry_unix_s"] - time.time()
    again = f"the next attempt is in {shown_span(wait_s)}" if wait_s > 0 else "the next attempt runs"
    where = f"log: {failing['log']}" if failing["log"] else "no log: the process said nothing"
    return [
        f"cannot start (phase {failing['phase']}; {count} attempt{'' if count == 1 else 's'}): {failing['cause']}",
        f"  {where}",
        f"  to do: {hint_of(failing['phase'])}; {again}",
    ]


def sentence_of(failing: FailingModel) -> str:
    """The same of a model that `raylane up` waits for, with its name."""
    first, *rest = _failing_lines(failing.record())
    return "\n".join([f"model {failing.model} {first}", *rest])


def start_line(replica: Mapping[str, Any], name: str) -> str:
    """Where the time of a ready replica's start went."""
    start = replica.get("start")
    if not start:
        return f"{escape(name)}: its start is not known (any more)"
    return f"{escape(name)} was ready {start['wall_s']:.1f} s after it was asked for: {parts_of(start['seconds'])}"
