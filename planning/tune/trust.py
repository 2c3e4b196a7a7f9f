"""Whether a proposal may rest on the simulator: only as far as its error on this deployment is known, and small.

Someone on call who sets what a tool proposes acts on the tool's figures. Where nobody has compared the simulator with this deployment, or it was off
by more than what the proposal is about, its figures are guesses, and a guess must not look like advice: it is refused, with a code of its own so that
a pipeline stops there, and shown only to those who ask for it all the same (`--anyway`), with the warning in it. Live runs that differ among
themselves excuse nothing here: an error that is not known well is not small.
"""

from dataclasses import dataclass

from deployments.telemetry.published_error import Published

MOST_TTFT, MOST_CAPACITY = 0.2, 0.1
_FIGURE = "ttft/all/p90"


@dataclass(frozen=True, slots=True)
class Trust:
    """`doubts`: why the simulator's figures are not to be relied on; none: they are. `error`: what is known of it, in words."""

    doubts: tuple[str, ...]
    error: str


def judge(published: Published | None, model: str, most_ttft: float = MOST_TTFT, most_capacity: float = MOST_CAPACITY) -> Trust:
    """Judges what a rehearsal published. `most_ttft`: how far the p90 of TTFT may be off at any load, `most_capacity` the capacity (shares)."""
    if published is None:
        missing = "no published error: nobody has compared the simulator with this deployment"
        return Trust((missing,), "unknown: never rehearsed")
    doubts = [] if published.model == model else [f"the published error is of model {published.model!r}, not of {model!r}"]
    found = [(at.load, figure.error) for at in published.loads for figure in at.figures if figure.name == _FIGURE]
    if not found:
        doubts.append(f"the published error has no figure {_FIGURE!r}")
    doubts += [f"TTFT p90 at {load:g} x capacity is off by {error:+.1%}; allowed: {most_ttft:.0%}" for load, error in found if abs(error) > most_ttft]
    if abs(published.capacity_error) > most_capacity:
        doubts.append(f"the capacity is off by {published.capacity_error:+.1%}; allowed: {most_capacity:.0%}")
    loads = ", ".join(f"{error:+.1%} at {load:g} x capacity" for load, error in found) or "not told"
    told = f"TTFT p90 {loads}; capacity {published.capacity_error:+.1%}; rehearsed {published.measured_at[:10]} on {published.replicas} replica(s)"
    return Trust(tuple(doubts), told)
