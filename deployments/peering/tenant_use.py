"""What tenants use of their limits in other cells, so that a limit counts once across cells. Pure.

Each cell counts what its tenants take, from its owner's start on, and says so in its digests. Who hears a digest takes
what has been added since the one before from its own bucket of that tenant, which may go into debt:

    level := min(L, level + L * dt / 60) - taken here - taken by peers, when their digests come

Bound: N cells, a limit of L a minute, requests of up to C, and peers of which nothing older than D seconds is unknown.
In any T seconds all cells together admit at most

    N * max(L, C) + L * (T + (N - 1) * D) / 60

Proof. One cell alone admits at most B + L * T / 60 in T seconds, B = max(L, C): its level is at most L at first, and
after an admission at least L - B. Of all cells' last admissions, take the latest, at t in cell i. By then, cell i has
taken from its bucket what it admitted itself and what the others had admitted D seconds before t. Both together are at
most B + L * T / 60. Each of the other N - 1 cells has admitted at most B + L * D / 60 since.

So it is a constant above the limit, once: what was too much is a debt in every cell. N limits that know nothing of each
other admit N * (L + L * T / 60).

A cell that is not heard counts for nothing new: in a partition each part has the limit for itself. Of what was taken
meanwhile, only the last minute's part counts when the cells hear each other again, or tenants would pay for hours.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deployments.scheduling import TenantUse

WINDOW_S = 60.0
"""Limits are by the minute."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """A cell's word on one model, as the answer to a question that was asked at `asked_s`."""

    epoch: int
    asked_s: float
    uses: Mapping[str, TenantUse]


class UseElsewhere:
    """Of one cell. At once counts only what is in digests that are at most `max_age_s` old."""

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._heard: dict[tuple[str, str], _Heard] = {}
        """By model and cell."""
        self._news: defaultdict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
        """By model and tenant: requests and tokens that were taken, and were not returned by `news` yet."""

    def heard(self, cell: str, epoch: int, model: str, uses: Iterable[TenantUse], asked_s: float) -> None:
        """A cell's digest was taken over. With a new epoch it counts from zero; the first digest of a cell says only
        from where on."""
        before, known = self._heard.get((model, cell)), {one.tenant: one for one in uses}
        self._heard[model, cell] = _Heard(epoch, asked_s, known)
        if before is None:
            return
        base = before.uses if before.epoch == epoch else {}
        passed_s = asked_s - before.asked_s
        share = WINDOW_S / passed_s if passed_s > WINDOW_S else 1.0
        news = self._news[model]
        for name, one in known.items():
            was = base.get(name, TenantUse(name, 0, 0, 0))
            requests, tokens = news.get(name, (0.0, 0.0))
            news[name] = (
                requests + share * max(0.0, one.requests - was.requests),
                tokens + share * (one.tokens - was.tokens),
            )

    def news(self, model: str, now: float) -> tuple[TenantUse, ...]:
        """What other cells have taken since the last call, and what they have at once: for the scheduler of a model
        (`Scheduler.used_elsewhere`)."""
        taken = self._news.pop(model, {})
        at_once: defaultdict[str, int] = defaultdict(int)
        for (name, _), heard in self._heard.items():
            if name == model and now - heard.asked_s <= self._max_age_s:
                for one in heard.uses.values():
                    at_once[one.tenant] += one.at_once
        return tuple(
            TenantUse(tenant, *taken.get(tenant, (0.0, 0.0)), at_once[tenant]) for tenant in sorted({*taken, *at_once})
        )
