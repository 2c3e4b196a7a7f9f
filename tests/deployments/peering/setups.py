"""What the tests of peering share: specs of three cells, digests, requests."""

from typing import Any

import yaml

from cluster.spec import ClusterSpec, parse_spec
from deployments.peering import Digest, HandOverReason, HopFacts, LaneDigest, ModelDigest, Question, Received
from deployments.peering.rules import Rules
from deployments.scheduling import Request

CELLS = ("eu", "us", "ap")
MODEL = "m"
KEY = "sha256:" + "0" * 63


def make_spec(**changes: Any) -> ClusterSpec:
    """Three regions with peers, classes `interactive` (1 s) and `batch` (30 s, prefers price); `changes` replace
    sections."""
    content: dict[str, Any] = {
        "name": "x",
        "regions": [
            {"name": name, "endpoint": f"https://{name}.example.org", "pools": [{"name": "p"}]} for name in CELLS
        ],
        "models": [{"name": MODEL, "source": "s", "settings": {"max_model_len": 10_000}}],
        "classes": [
            {"name": "interactive", "ttft_ms": 1_000},
            {"name": "batch", "ttft_ms": 30_000, "prefers": "price"},
        ],
        "peering": {"secret": {"kind": "file"}},
    }
    return parse_spec(yaml.safe_dump(content | changes))


def make_model(
    wait_s: float = 0.0,
    replicas: int = 2,
    free: int = 80,
    usd_per_mtok: float | None = None,
    hands_over: bool = False,
    name: str = MODEL,
) -> ModelDigest:
    """A model whose one lane `all` has that wait, with `free` of 100 sequences, of 1,000 KV tokens each."""
    lanes = (LaneDigest("all", wait_s / 2, wait_s),)
    return ModelDigest(
        name, lanes, replicas, 100, free, 100_000, 1_000 * free, 5_000.0 * replicas, usd_per_mtok, hands_over
    )


def make_digest(
    cell: str,
    question: Question,
    model: ModelDigest | None = None,
    epoch: int = 1,
    sequence: int = 1,
    marks: frozenset[str] = frozenset(),
    received: tuple[Received, ...] = (),
) -> Digest:
    """A cell's digest of one model."""
    return Digest(cell, epoch, sequence, question, marks, (model or make_model(),), received)


def make_hop(spec: ClusterSpec, **changes: Any) -> HopFacts:
    """Of a request from `eu`; where it may go and by which rules is what the spec says, unless they are given."""
    what: dict[str, Any] = dict.fromkeys(("attempt", "epoch", "number", "hops", "sequences"), 1)
    what |= {"request_id": "r", "home": "eu", "reason": HandOverReason.SOONER, "model": MODEL, "tenant": ""}
    what |= {"traffic_class": "interactive", "prompt_tokens": 100, "max_tokens": 50, "slo_s": 1.0}
    what |= {"waited_s": 0.25, "slack_s": 0.75, "patience_s": 30.0} | changes
    rules, names = Rules(spec), (what["model"], what["traffic_class"], what["tenant"])
    if "residency" not in what:
        what["residency"] = rules.allowed(*names).residency
    if "marks" not in what:
        what["marks"] = rules.marks_of(*names)
    return HopFacts(**what)


def make_request(
    name: str = "r",
    now: float = 0.0,
    slo_s: float = 1.0,
    patience_s: float = 60.0,
    prompt: int = 100,
    traffic_class: str = "interactive",
    tenant: str = "",
    prefix: tuple[int, ...] = (),
) -> Request:
    """A request that arrives `now`."""
    times = now, now + slo_s, now + patience_s
    chunks: dict[str, Any] = {"prefix": prefix, "chunk_tokens": 64 if prefix else 0}
    return Request(name, prompt, 50, *times, traffic_class=traffic_class, tenant=tenant, **chunks)
