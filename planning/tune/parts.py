"""Which parts of the traffic a first look at settings is taken on: stretches at even distances, one of them around the busiest minutes.

An even sample meets every time of the day as often as any other, and laying it out from the peak sees to it that no peak is thinned away. Several
short stretches tell the cost of a day better than one long one (within 2 % instead of 5 % of its replica-hours for a quarter of the day, over
settings of all kinds). Each begins with a lead that is played and not counted, in which the number of replicas becomes the law's own. What is
estimated so is never reported: it says which settings deserve a run of the whole.
"""

from dataclasses import dataclass

from planning.tune.load import Load

_SHARE = 1 / 4
"""Of the whole, all parts together."""
_COUNT = 6
_SHORTEST_S = 1_200.0
_LEAD = 1 / 3
"""Of a part."""


@dataclass(frozen=True, slots=True)
class Part:
    """The seconds `from_s` to `to_s`, played from `lead_s` before on; it counts `weight` times."""

    from_s: float
    to_s: float
    weight: float
    lead_s: float = 0.0


def whole(span_s: float) -> tuple[Part, ...]:
    """Everything."""
    return (Part(0.0, span_s, 1.0),)


def parts_of(load: Load, span_s: float) -> tuple[Part, ...]:
    """The parts, in the order of time; everything where that is too short to be cut."""
    length_s, distance_s = _SHARE * span_s / _COUNT, span_s / _COUNT
    if length_s < _SHORTEST_S:
        return whole(span_s)
    peak_s = (int(load.replicas.argmax()) + 0.5) * load.step_s
    first_s = min(max(peak_s % distance_s - length_s / 2, 0.0), distance_s - length_s)
    begins = (first_s + number * distance_s for number in range(_COUNT))
    return tuple(Part(begin, begin + length_s, 1 / _SHARE, min(begin, _LEAD * length_s)) for begin in begins)
