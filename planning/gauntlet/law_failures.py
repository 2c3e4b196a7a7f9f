"""Laws that raise: the autoscaler keeps the number then, so a law that never answers has a score too, of a number that nobody chose."""

from planning.simulator.outcome import Outcome


class LawFailedError(RuntimeError):
    """A law that answered not once in a play; the message names the law, the scenario and what it raised."""


def failure_of(out: Outcome, law: str, scenario: str) -> str | None:
    """What to tell of a law that raised at times, None of one that did not. Raises LawFailedError for one that did nothing else."""
    errors = [one.error for one in out.scalings if one.error is not None]
    if not errors:
        return None
    if all(one.wanted is None for one in out.scalings):
        raise LawFailedError(f"law {law!r} failed at every decision of a play of scenario {scenario!r}: {errors[0]}")
    return f"law {law!r} failed at some decisions of scenario {scenario!r}, where the number of replicas stayed: {errors[0]}"
