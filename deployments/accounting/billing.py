"""From facts to a bill: each nanosecond of each replica belongs to one line. Pure.

    replica's hour = starting + work + idle + unattributed
    starting       = from when it had its GPUs until it served; all of it where it never did
    work           = while at least one attempt of a request ran, shared by what the work of each counts for
    idle           = while a gateway watched it and no request was there
    unattributed   = the rest, and the part of attempts that were cut

Beside that stands what the external tier took, by the prices in the spec.

An attempt that runs over the end of an hour works in both, in proportion to its time; its tokens are counted where it
ended.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from cluster.group_key import DEFAULT_GROUP
from deployments.accounting.bill import (
    HOUR_NS,
    Amounts,
    Bill,
    LineKey,
    TimeShare,
    divided,
    hour_of,
    summed,
)
from deployments.accounting.facts import AttemptUsage, Count, Tariff, tariff_at
from deployments.accounting.gathering import Gathered, ReplicaLife
from deployments.accounting.pricing import Pricing, Work
from deployments.accounting.spans import Span, common, measure, minus, union

_UNITS = 10**12
"""Weights are whole numbers of picoseconds, or of millionths of a token."""
_NOBODY = ("", "", "")


Keyed = tuple[LineKey, Amounts]


def bill_of(facts: Gathered, hours: Sequence[int], pricing: Callable[[Tariff], Pricing]) -> Bill:
    """The bill of those hours, by their begins."""
    pricings: dict[tuple[str, str, str], Pricing] = {}
    basis: dict[str, str] = {}
    pairs: list[Keyed] = []
    chosen = frozenset(hours)
    for replica_id in sorted({*facts.lives, *facts.attempts}):
        life, attempts = facts.lives.get(replica_id), facts.attempts.get(replica_id, ())
        tariff = _tariff(facts, life, attempts)
        key = tariff.model, tariff.group, tariff.costs
        if key not in pricings:
            pricings[key] = pricing(tariff)
        priced = _priced(attempts, pricings[key])
        of_replica = [pair for hour_ns in sorted(chosen) for pair in _hour(facts, life, tariff, priced, hour_ns)]
        of_replica += _tokens(attempts, tariff, chosen, facts.late)
        if of_replica:
            basis[f"{tariff.model}@{tariff.group}"] = pricings[key].basis
        pairs += of_replica
    pairs += _external(facts, chosen)
    return Bill(summed(pairs), basis)


def _tariff(facts: Gathered, life: ReplicaLife | None, attempts: Sequence[AttemptUsage]) -> Tariff:
    """What was in force when the replica began, or came next."""
    model, group = (attempts[0].model, DEFAULT_GROUP) if life is None else (life.model, life.group)
    at_ns = attempts[0].from_ns if life is None else life.begin_ns
    known = facts.tariffs.get((model, group), ())
    return tariff_at(known, at_ns) if known else Tariff(at_ns, model, group, "", "", 0, Fraction(0), "", 1, 1.0)


@dataclass(frozen=True, slots=True)
class PricedAttempt:
    usage: AttemptUsage
    work: Work

    def weight(self, window: Span) -> tuple[int, int]:
        """What it counts for in a window: for its prompt, and for its output."""
        usage = self.usage
        begin, end = max(window[0], usage.from_ns), min(window[1], usage.to_ns)
        if begin >= end:
            return 0, 0
        share = (end - begin) / (usage.to_ns - usage.from_ns)
        return round(_UNITS * share * self.work.prefill), round(_UNITS * share * self.work.decode)

    @property
    def payer(self) -> tuple[TimeShare, str, str, str]:
        usage = self.usage
        return (TimeShare.UNATTRIBUTED, *_NOBODY) if usage.count is Count.CUT else (TimeShare.WORK, *_owner(usage))


def _owner(usage: AttemptUsage) -> tuple[str, str, str]:
    return usage.tenant, usage.traffic_class, usage.home


def _priced(attempts: Sequence[AttemptUsage], pricing: Pricing) -> list[PricedAttempt]:
    """The work of each attempt on one replica, beside the others."""
    batches = _batches(attempts)
    whole_ns = sum(batch * (one.to_ns - one.from_ns) for one, batch in zip(attempts, batches, strict=True))
    context = (
        sum(
            (one.prompt_tokens + one.output_tokens / 2) / max(1, one.sequences) * batch * (one.to_ns - one.from_ns)
            for one, batch in zip(attempts, batches, strict=True)
        )
        / whole_ns
        if whole_ns
        else 0.0
    )
    return [PricedAttempt(one, pricing.work(one, batch, context)) for one, batch in zip(attempts, batches, strict=True)]


def _batches(attempts: Sequence[AttemptUsage]) -> list[float]:
    """The harmonic mean of the sequences that ran while each attempt did."""
    changes: defaultdict[int, int] = defaultdict(int)
    for one in attempts:
        changes[one.from_ns] += max(1, one.sequences)
        changes[one.to_ns] -= max(1, one.sequences)
    shares: dict[int, float] = {}
    """By time: nanoseconds that one sequence has had by then, had it run from the beginning."""
    running, had_ns, before_ns = 0, 0.0, 0
    for at_ns in sorted(changes):
        had_ns += (at_ns - before_ns) / running if running else 0.0
        shares[at_ns], before_ns = had_ns, at_ns
        running += changes[at_ns]
    return [
        (one.to_ns - one.from_ns) / share_ns if (share_ns := shares[one.to_ns] - shares[one.from_ns]) > 0 else 1.0
        for one in attempts
    ]


def _hour(
    facts: Gathered, life: ReplicaLife | None, tariff: Tariff, priced: Sequence[PricedAttempt], hour_ns: int
) -> Iterator[Keyed]:
    """The time of one replica in one hour."""
    window = hour_ns, hour_ns + HOUR_NS
    if life is None or not (lived := common([window], union([(life.begin_ns, life.end_ns)]))):
        return
    ready_ns = life.end_ns if life.ready_ns is None else life.ready_ns
    served = common(lived, union([(ready_ns, life.end_ns)]))
    busy = common(served, union((one.usage.from_ns, one.usage.to_ns) for one in priced))
    held, watched = facts.held.get(life.replica_id, ()), facts.watched.get(life.replica_id, ())
    idle_ns = measure(minus(minus(common(served, watched), busy), held))
    work_ns, served_ns = measure(busy), measure(served)
    left_ns = served_ns - work_ns - idle_ns
    weights: defaultdict[tuple[TimeShare, str, str, str, bool], int] = defaultdict(int)
    for one in priced if work_ns else ():
        if one.usage.from_ns < window[1] and one.usage.to_ns > window[0]:
            for weight, decodes in zip(one.weight(window), (False, True), strict=True):
                weights[*one.payer, decodes] += weight
    if work_ns and not any(weights.values()):
        left_ns += work_ns
        weights.clear()
    for (share, *owner, decodes), part_ns in divided(work_ns, weights).items() if weights else ():
        if share is TimeShare.UNATTRIBUTED:
            left_ns += part_ns
        else:
            parts = (0, part_ns) if decodes else (part_ns, 0)
            yield _key(tariff, hour_ns, share, owner), Amounts(part_ns, *parts)
    starting_ns = measure(lived) - served_ns
    for share, part_ns in (
        (TimeShare.STARTING, starting_ns),
        (TimeShare.IDLE, idle_ns),
        (TimeShare.UNATTRIBUTED, left_ns),
    ):
        yield _key(tariff, hour_ns, share, _NOBODY), Amounts(part_ns)


def _tokens(
    attempts: Sequence[AttemptUsage], tariff: Tariff, hours: frozenset[int], late: Mapping[str, int]
) -> Iterator[Keyed]:
    """What was counted of each attempt, in the hour in which it ended."""
    for one in attempts:
        late_ns = late.get(one.attempt_id)
        hour_ns = hour_of(one.to_ns) if late_ns is None else late_ns
        if hour_ns not in hours:
            continue
        known = Amounts(late=int(late_ns is not None))
        guess = replace(known, estimated_prompt_tokens=one.prompt_tokens, estimated_output_tokens=one.output_tokens)
        match one.count:
            case Count.ENGINE:
                counted = replace(
                    known,
                    requests=1,
                    prompt_tokens=one.prompt_tokens,
                    cached_tokens=one.cached_tokens,
                    output_tokens=one.output_tokens,
                )
                yield _key(tariff, hour_ns, TimeShare.WORK, _owner(one)), counted
            case Count.ESTIMATE:
                yield _key(tariff, hour_ns, TimeShare.WORK, _owner(one)), replace(guess, estimated=1)
            case Count.CUT:
                yield _key(tariff, hour_ns, TimeShare.UNATTRIBUTED, _NOBODY), replace(guess, cut=1)


def _external(facts: Gathered, hours: frozenset[int]) -> Iterator[Keyed]:
    """What was spent outside."""
    for one in facts.external:
        late_ns = facts.late.get(one.attempt_id)
        hour_ns = hour_of(one.at_ns) if late_ns is None else late_ns
        if hour_ns not in hours or not one.pico_usd_in + one.pico_usd_out:
            continue
        spent = Amounts(external_in=one.pico_usd_in, external_out=one.pico_usd_out, late=int(late_ns is not None))
        tokens = one.prompt_tokens, one.output_tokens
        if one.estimated:
            spent = replace(spent, estimated=1, estimated_prompt_tokens=tokens[0], estimated_output_tokens=tokens[1])
        else:
            spent = replace(spent, requests=1, prompt_tokens=tokens[0], output_tokens=tokens[1])
        whose = TimeShare.EXTERNAL, one.tenant, one.traffic_class
        yield LineKey(hour_ns, one.region, one.model, one.replica_id, *whose, Fraction(0)), spent


def _key(tariff: Tariff, hour_ns: int, share: TimeShare, owner: Sequence[str]) -> LineKey:
    where = (hour_ns, tariff.region, tariff.model, tariff.group)
    return LineKey(*where, share, owner[0], owner[1], tariff.usd_per_hour, owner[2])
