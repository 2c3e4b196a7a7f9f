"""Backlogged lanes that share by weight: the fluid limit of fair queueing.

`work_before`: how much work is placed before a lane's own work ahead is done. In virtual time v each backlogged lane g has had weight(g) * v of
work placed, until it is empty. This lane's own work is done at v = own / weight.
"""

from collections.abc import Iterable, Sequence


def work_before(own_ahead: float, own_weight: float, others: Iterable[tuple[float, float]]) -> float:
    """Work placed in all until `own_ahead` of this lane is placed. `others`: (waiting work, weight) of each other lane."""
    done_at = own_ahead / own_weight
    placed = own_ahead
    for work, weight in others:
        most = weight * done_at
        placed += work if work < most else most
    return placed


def fair_rates(rate: float, flows: Sequence[tuple[float, float]]) -> list[float]:
    """What each flow gets of a service rate: of (rate at which work is offered, weight) each.

    Max-min fairness: who is offered less than its share takes what it is offered, and the rest is shared anew.
    """
    given = [0.0] * len(flows)
    weight = sum(share for _, share in flows)
    for index in sorted(range(len(flows)), key=lambda index: flows[index][0] / flows[index][1]):
        offered, share = flows[index]
        given[index] = min(offered, rate * share / weight)
        rate -= given[index]
        weight -= share
    return given
