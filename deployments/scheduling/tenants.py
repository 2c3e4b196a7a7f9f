"""What the tenants of a model were given, on one scale for all lanes and groups, and who is over its share.

    clock    = the smallest tag of the tenants that wait; V: the largest that it was
    tag(t)   : each placement of t adds  cost / weight(t);  when t begins to wait it is at least  V - slack / weight(t)
    over(t)  :  weight(t) * (tag(t) - clock)  >  slack         slack = max(SLACK_S * service rate, largest request)

These are the tags of start-time fair queueing (fair.py) with another clock. That of the request that was served last
runs along with whoever is served, so that nobody is ever ahead of it; this one stands still while somebody waits in
vain. Who was idle is owed the slack, and no more: a tenant that had the replicas to itself is over its share with its
next request, and not two seconds later.

What is over its share is passed over while a tenant that is not waits for the same replicas (placing.py). Within its
share, in a lane, the tenant with the smallest tag is next, and lanes share by weight, whose requests they are: a short
one overtakes other tenants' long ones. While a waits, the clock is at most tag(a), so that with C the largest request
another tenant b is placed at most

    work(b) <= weight(b) / weight(a) * (work(a) + ahead(a)) + 2 * slack + 2 * C
    ahead(a) = max(0, weight(a) * (tag(a) - V)) as it began to wait, at most slack + C

one C for the request that makes b over its share, one for a request that a replica was reserved for before.
"""

import heapq
from collections.abc import Mapping

from deployments.scheduling.fair import FairFlow

SLACK_S = 2.0
_IDLE_TENANTS = 1_024
_SLACK = 64


class TenantAccount(FairFlow):
    """One tenant: `waiting` requests of it; `start` is its tag. `listed`: it has an entry in the heap."""

    __slots__ = ("listed", "waiting")

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.waiting = 0
        self.listed = False


class TenantAccounts:
    """Of one model. `slack` is set by who places (placing.py)."""

    def __init__(self) -> None:
        self.slack = 0.0
        self._weights: Mapping[str, float] = {}
        self._accounts: dict[str, TenantAccount] = {}
        self._reached = 0.0
        self._by_tag: list[tuple[float, int, TenantAccount]] = []
        """The tenants that wait, by a tag that each has or had: tags only grow, so the first whose own it is is right.
        """
        self._entries = 0
        self._sweep_at = _IDLE_TENANTS

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Shares change; what was given counts as it was charged."""
        self._weights = weights
        for name, account in self._accounts.items():
            account.weight = weights.get(name, 1.0)

    def of(self, tenant: str) -> TenantAccount:
        """That of a tenant that waits."""
        return self._accounts[tenant]

    def waits(self, tenant: str) -> None:
        """A request of the tenant waits."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = TenantAccount(self._weights.get(tenant, 1.0))
        account.waiting += 1
        if account.waiting == 1:
            self._clock()
            account.start = max(account.start, self._owed(account))
            if not account.listed:
                account.listed = True
                self._entries += 1
                heapq.heappush(self._by_tag, (account.start, self._entries, account))

    def charge(self, tenant: str, cost: float) -> None:
        """A request of the tenant is placed."""
        account = self._accounts[tenant]
        account.start += cost / account.weight

    def gone(self, tenant: str) -> None:
        """A request of the tenant waits no more. Who is idle is remembered while it is owed less than the slack, and
        others wait."""
        account = self._accounts[tenant]
        account.waiting -= 1
        if account.waiting:
            return
        self._clock()
        if not self._by_tag:
            self._accounts.clear()
        elif account.start <= self._owed(account):
            del self._accounts[tenant]
        elif len(self._accounts) > self._sweep_at:
            accounts = self._accounts.items()
            self._accounts = {name: one for name, one in accounts if one.waiting or one.start > self._owed(one)}
            self._sweep_at = 2 * len(self._accounts) + _IDLE_TENANTS
        if len(self._by_tag) > 2 * len(self._accounts) + _SLACK:
            for _, _, one in self._by_tag:
                one.listed = one.waiting > 0
            self._by_tag = [entry for entry in self._by_tag if entry[2].listed]
            heapq.heapify(self._by_tag)

    def is_over(self, tenant: str) -> bool:
        """Whether the tenant, which waits, is over its share."""
        if len(self._accounts) == 1:
            return False
        account = self._accounts[tenant]
        return account.weight * (account.start - self._clock()) > self.slack

    def _owed(self, account: TenantAccount) -> float:
        """The smallest tag with which it may begin to wait."""
        return self._reached - self.slack / account.weight

    def _clock(self) -> float:
        """The smallest tag of the tenants that wait; V while none does."""
        by_tag = self._by_tag
        while by_tag:
            tag, number, account = by_tag[0]
            if not account.waiting:
                account.listed = False
                heapq.heappop(by_tag)
            elif tag < account.start:
                heapq.heapreplace(by_tag, (account.start, number, account))
            else:
                self._reached = max(self._reached, tag)
                return tag
        return self._reached
