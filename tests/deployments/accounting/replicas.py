"""Facts of an imagined cell, whose whole truth is known: replicas start, serve, are watched and end; attempts of
tenants' requests run on them."""

import random
from dataclasses import dataclass, field
from fractions import Fraction

from deployments.accounting.bill import HOUR_NS
from deployments.accounting.facts import (
    NS,
    AttemptUsage,
    Count,
    Fact,
    ReplicaBegun,
    ReplicaGone,
    ReplicaReady,
    ReplicasAlive,
    Tariff,
    Watched,
)
from deployments.accounting.spans import Span, measure, union

BEGIN = 493_000 * HOUR_NS
PRICE = Fraction("3.21")
TARIFF = Tariff(BEGIN, "m", "default", "here", "h100", 1, PRICE, "", 2_048, 4.0)


@dataclass(slots=True)
class ImaginedCell:
    """`facts` in the order in which they were reported, and what they come to."""

    facts: list[Fact] = field(default_factory=list)
    occupied_ns: int = 0
    starting_ns: int = 0
    idle_ns: int = 0
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Prompt and output tokens by tenant, as the engines counted them."""
    cut: int = 0
    estimated: int = 0
    last_ns: int = 0

    @property
    def hours(self) -> range:
        return range(BEGIN, self.last_ns + 1, HOUR_NS)

    @property
    def usd(self) -> Fraction:
        return Fraction(self.occupied_ns, HOUR_NS) * PRICE


def imagined(seed: int, requests: int, replicas: int = 4, tenants: tuple[str, ...] = ("a", "b", "c")) -> ImaginedCell:
    """Replicas of which some are killed and some never serve, steps in their number, idle time, hours that nobody
    watched, and requests that were cut or not counted."""
    rng = random.Random(seed)
    cell = ImaginedCell()
    cell.facts.append(TARIFF)
    for number in range(replicas):
        _replica(cell, rng, f"r{number}", requests // replicas, tenants)
    return cell


def _replica(cell: ImaginedCell, rng: random.Random, name: str, requests: int, tenants: tuple[str, ...]) -> None:
    begin = BEGIN + rng.randrange(2 * HOUR_NS)
    ready = begin + rng.randrange(1, 200 * NS)
    end = ready + rng.randrange(HOUR_NS, 3 * HOUR_NS)
    serves, is_killed = rng.random() < 0.9, rng.random() < 0.5
    if not serves:
        end = ready
    cell.facts.append(ReplicaBegun(begin, name, "m"))
    cell.starting_ns += ready - begin
    cell.occupied_ns += end - begin
    cell.last_ns = max(cell.last_ns, end)
    ran: list[Span] = []
    if serves:
        cell.facts.append(ReplicaReady(ready, name))
        names = [f"{name}-{number}" for number in range(requests)]
        ran += [_attempt(cell, rng, one, name, (ready, end), is_killed, tenants) for one in names]
        seen = ready + (end - ready) // 3
        cell.facts += [Watched(seen, "g1", {name: ready}), Watched(end, "g2", {name: seen + NS})]
        idle = measure(union([(ready, seen), (seen + NS, end)])) - measure(
            [
                (max(a, c), min(b, d))
                for a, b in union(ran)
                for c, d in ((ready, seen), (seen + NS, end))
                if max(a, c) < min(b, d)
            ]
        )
        cell.idle_ns += idle
    if rng.random() < 0.5:
        cell.facts.append(ReplicaGone(end, name))
    else:
        cell.facts += [ReplicasAlive(end - 7 * NS, (name,)), ReplicasAlive(end, (name,))]


def _attempt(
    cell: ImaginedCell,
    rng: random.Random,
    attempt_id: str,
    replica_id: str,
    served: Span,
    is_killed: bool,
    tenants: tuple[str, ...],
) -> Span:
    begin = rng.randrange(*served)
    end = min(served[1], begin + rng.randrange(1, 30 * NS))
    tenant = rng.choice(tenants)
    prompt, output = rng.randrange(1, 4_000), rng.randrange(0, 500)
    count = Count.CUT if is_killed and end == served[1] else Count.ESTIMATE if rng.random() < 0.02 else Count.ENGINE
    cached, home = rng.randrange(prompt), ("far" if prompt % 5 == 0 else "")
    usage = AttemptUsage(
        attempt_id, replica_id, "m", tenant, "chat", begin, end, count, prompt, cached, output, home=home
    )
    cell.facts.append(usage)
    cell.cut += count is Count.CUT
    cell.estimated += count is Count.ESTIMATE
    if count is Count.ENGINE:
        before = cell.tokens.get(tenant, (0, 0))
        cell.tokens[tenant] = before[0] + prompt, before[1] + output
    return begin, end
