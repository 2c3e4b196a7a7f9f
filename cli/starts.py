"""Sentences on how replicas start, for `raylane up`, `status` and `explain`: the phase that one is in, where the time
of a start went, and why one failed."""

import time
from collections.abc import Mapping

from rich.markup import escape

from cli.console import shown_span
from deployments.starts.phases import Phase
from deployments.starts.start import FailingModel, ReplicaStart

_HINTS = {
    Phase.NODE: "is there a node with room? `raylane status`",
    Phase.ENVIRONMENT: "read the log; `raylane doctor SPEC` checks the installation",
    Phase.FETCH: "check the model's `source` and the credentials of its store: `raylane models pull SPEC`",
    Phase.LOAD: "check the model's files and settings; the log has the engine's own error",
}
_HINT = "read the log; if memory ran out, lower `settings.max_model_len` or the KV cache"


def hint_of(phase: Phase) -> str:
    """What to do about a start that failed in that phase."""
    return _HINTS.get(phase, _HINT)


def parts_of(seconds: Mapping[Phase, float]) -> str:
    """Where the time went, in the phases' order; those of less than 50 ms are left out, and named when all are."""
    parts = [f"{phase} {seconds[phase]:.1f} s" for phase in Phase if seconds.get(phase, 0.0) >= 0.05]
    return ", ".join(parts) or "nothing took longer than 50 ms"


def starting_line(start: ReplicaStart, name: str) -> str:
    """Of a replica that starts: the phase, since when, how far a fetch is, and since when it was asked for."""
    now, fetched = time.time(), ""
    if start.fetching is not None and start.fetching.total_bytes:
        there, total = (size / (1 << 30) for size in (start.fetching.there_bytes, start.fetching.total_bytes))
        fetched = f" ({there:.2f} of {total:.2f} GiB, {start.fetching.bytes_per_s / 1e6:.0f} MB/s)"
    return (
        f"[yellow]{escape(name)} starts: {start.phase} for {shown_span(now - start.since_unix_s)}{fetched}, "
        f"{shown_span(now - start.asked_unix_s)} in all[/]"
    )


def sentence_of(failing: FailingModel) -> str:
    """Why a model does not start, and what to do: three lines."""
    count, last = failing.failures, failing.last
    wait_s = failing.retry_unix_s - time.time()
    again = f"the next attempt is in {shown_span(wait_s)}" if wait_s > 0 else "the next attempt runs"
    where = f"log: {last.log}" if last.log else "no log: the process said nothing"
    attempts = f"{count} attempt{'' if count == 1 else 's'}"
    return (
        f"model {failing.model} cannot start (phase {last.phase}; {attempts}): {last.cause}\n"
        f"  {where}\n  to do: {hint_of(last.phase)}; {again}"
    )


def start_line(start: ReplicaStart | None, name: str) -> str:
    """Where the time of a ready replica's start went."""
    if start is None:
        return f"{escape(name)}: its start is not known (any more)"
    return f"{escape(name)} was ready {start.wall_s:.1f} s after it was asked for: {parts_of(start.seconds)}"
