"""The prefix index at its bounds: what is evicted first, who is forgotten, what trust follows."""

from deployments.scheduling import Capacity, PickReason
from deployments.scheduling.learned_state import PrefixIndex
from deployments.scheduling.pick import Candidates, MinTtft, uncached_tokens
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Job
from tests.deployments.scheduling.world import make_request


def test_the_longest_and_least_used_is_evicted_first() -> None:
    index = PrefixIndex()
    index.add((1, 2, 3), "r0", 4)
    index.add((1, 5), "r0", 4)
    assert [index.known(prefix, "r0") for prefix in ((1, 2, 3), (1, 5))] == [3, 2]
    index.add((1, 6), "r0", 4)
    assert [index.known(prefix, "r0") for prefix in ((1, 2, 3), (1, 5), (1, 6))] == [2, 2, 2]
    index.add((1,), "r0", 0)
    assert index.known((1, 6), "r0") == 1, "one is always kept"
    assert index.longest((1, 6)) == (1, frozenset({"r0"}))


def test_a_gap_only_makes_a_credit_smaller() -> None:
    index = PrefixIndex()
    index.add((1, 2, 3, 4), "r0", 9)
    del index._by_replica["r0"][2]
    assert index.known((1, 2, 3, 4), "r0") <= 4
    assert index.known((9, 2), "r0") == index.known((), "r0") == index.known((1,), "r1") == 0


def test_who_is_forgotten_leaves_others_as_they_were() -> None:
    index = PrefixIndex()
    for name in ("r0", "r1"):
        index.add((1, 2), name, 9)
    index.forget("r0")
    index.forget("nobody")
    assert index.longest((1, 2)) == (2, frozenset({"r1"}))
    assert index.known((1, 2), "r0") == 0
    index.forget("r1")
    assert (index.longest((1, 2)), index._by_hash, index._by_replica) == ((0, frozenset()), {}, {})


def job(prompt: int = 1_000, sequences: int = 1, prefix: tuple[int, ...] = (1, 2, 3)) -> Job:
    """A job whose prefix is cut into chunks of 64 tokens."""
    made = Job(make_request("j", prompt, prefix=prefix, sequences=sequences), 1)
    made.prefill_tokens = prompt
    return made


def replica(name: str, prefill: int = 0, sequences: int = 0) -> Replica:
    """One with that load."""
    made = Replica(name, Capacity(32, 2, 100_000, 500, prefill_steps=2.0))
    made.prefill_tokens, made.sequences = prefill, sequences
    return made


def test_what_a_replica_must_prefill() -> None:
    index = PrefixIndex()
    index.add((1, 2), "r0", 9)
    assert uncached_tokens(job(), replica("r0"), index) == 1_000 - 128
    assert uncached_tokens(job(sequences=3), replica("r0"), index) == 3 * (1_000 - 128)
    assert uncached_tokens(job(), replica("r1"), index) == 1_000
    assert uncached_tokens(job(prompt=100), replica("r0"), index) == 1, "one token at least"
    index.trust = 0.25
    assert uncached_tokens(job(), replica("r0"), index) == 1_000 - 32


def pick(*candidates: object) -> tuple[Replica, PickReason]:
    """What the default pick chooses."""
    return MinTtft().choose(Candidates(*candidates))  # type: ignore[arg-type]


def test_of_several_warm_ones_the_least_loaded() -> None:
    index = PrefixIndex()
    warm = [replica("w0", 50, 1), replica("w1", 40, 9), replica("w2", 40, 2), replica("w3", 40, 2)]
    assert pick(job(), [replica("cold")], warm, index, 1e9)[0].replica_id == "w2"
    best = warm[2]
    assert pick(job(), [best, warm[0]], warm, index, 0.0) == (best, PickReason.CACHED_PREFIX)


def test_the_reason_says_what_decided() -> None:
    index, idle = PrefixIndex(), replica("idle")
    assert pick(job(100), [idle], [], index, 100.0) == (idle, PickReason.ONLY_FIT)
    assert pick(job(100), [idle, replica("b", 10)], [], index, 100.0) == (idle, PickReason.LEAST_PREFILL)
    assert pick(job(100), [idle, replica("b", 0, 3)], [], index, 100.0) == (idle, PickReason.LEAST_DECODE)
    busy, calm, calmer = replica("busy", 0, 5), replica("calm", 20, 2), replica("calmer", 10, 2)
    assert pick(job(501), [busy, calm, calmer], [], index, 100.0) == (calmer, PickReason.APART_FROM_SHORT)
    assert pick(job(500), [busy, calm, calmer], [], index, 100.0) == (busy, PickReason.LEAST_PREFILL)
    assert pick(job(501), [calmer, calm, busy], [], index, 100.0) == (calmer, PickReason.LEAST_PREFILL)
