"""How much work is placed before a lane's own work ahead is done, when backlogged lanes share by weight: the fluid limit of fair queueing.

In virtual time v each backlogged lane g has had weight(g) * v of work placed, until it is empty. This lane's own work is done at v = own / weight.
"""

from collections.abc import Iterable


def work_before(own_ahead: float, own_weight: float, others: Iterable[tuple[float, float]]) -> float:
    """Work placed in all until `own_ahead` of this lane is placed. `others`: (waiting work, weight) of each other lane."""
    done_at = own_ahead / own_weight
    placed = own_ahead
    for work, weight in others:
        most = weight * done_at
        placed += work if work < most else most
    return placed
