"""What tenants may still spend on the external tier today (`cluster/spec/external.py`). Pure.

A request's price is reserved before it is sent: for the most tokens that its prompt can be and that it may generate.
Once its end is known, what it took is spent instead. A reservation whose end nobody reports (its gateway was killed)
stands until the day is over, so that what is reserved and spent is never above the budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deployments.wire import Natural


@dataclass(frozen=True, slots=True)
class Reservation:
    tenant: str
    pico_usd: Natural


@dataclass(frozen=True, slots=True)
class Spending:
    """Of one day (UTC, counted from 1970): spent picodollars by tenant, and what is reserved, by the attempt's id."""

    day: Natural = 0
    spent: Mapping[str, Natural] = field(default_factory=dict)
    reserved: Mapping[str, Reservation] = field(default_factory=dict)

    def taken(self, tenant: str) -> int:
        """What of a tenant's budget is gone."""
        reserved = sum(one.pico_usd for one in self.reserved.values() if one.tenant == tenant)
        return self.spent.get(tenant, 0) + reserved

    def reserve(self, attempt_id: str, wanted: Reservation, budget: int, day: int) -> "Spending | None":
        """None: it would go beyond the budget. A day that is over frees all. A clock that goes back by a day does not;
        one that goes back further was far ahead, and its day counts no more."""
        of_day = self if self.day - 1 <= day <= self.day else Spending(day)
        if attempt_id in of_day.reserved:
            return of_day
        if of_day.taken(wanted.tenant) + wanted.pico_usd > budget:
            return None
        return replace(of_day, reserved={**of_day.reserved, attempt_id: wanted})

    def settle(self, attempt_id: str, pico_usd: int) -> "Spending":
        """An attempt has ended, and took so much. One that is not known, or was settled before, changes nothing."""
        if attempt_id not in self.reserved:
            return self
        tenant = self.reserved[attempt_id].tenant
        rest = {key: one for key, one in self.reserved.items() if key != attempt_id}
        return replace(self, spent={**self.spent, tenant: self.spent.get(tenant, 0) + pico_usd}, reserved=rest)
