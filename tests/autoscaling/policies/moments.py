"""Signals of one moment, written by hand, for the unit cases of policies; and a replica's limits and costs to go with
them."""

from autoscaling.policies.policy import ReplicaProfile
from autoscaling.signals.signals import Signals
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling.replica import ReplicaStatus
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.facts import lane_like, replica_like, signals_like

LIMITS = EngineModelLimits(sequences=128, step_tokens=2_048, kv_tokens=160_000)
COST = CostModel(line(0.016, 1e-5), line(0.0, 1e-4), plain_attention(5e-8, 1e-10))
"""A step takes about 20 ms with few sequences and 40 ms with 128."""
REPLICA_PROFILE = ReplicaProfile(LIMITS, decode_weight=4.0, cost=COST, start_up_s=60.0)


def moment(
    at_s: float = 0.0,
    *,
    ready: int = 0,
    starting: int = 0,
    unresponsive: int = 0,
    draining: int = 0,
    applied: int | None = None,
    waiting: int = 0,
    running: int = 0,
    kv_share: float = 0.0,
    queued_tokens: int = 0,
    arrived: int = 0,
    prompt_tokens: int = 0,
    ended: int = 0,
    output_tokens: int = 0,
    epoch: int = 1,
) -> Signals:
    """`running`, `queued_tokens` and `kv_share` (of what fits) are those of each replica that is not starting;
    `applied`: all but those that drain."""
    states = (
        (ReplicaStatus.READY,) * ready
        + (ReplicaStatus.UNRESPONSIVE,) * unresponsive
        + (ReplicaStatus.DRAINING,) * draining
    )
    kv_tokens = round(kv_share * LIMITS.kv_tokens)
    replicas = tuple(
        replica_like(f"r{index}", state, running, LIMITS.sequences, kv_tokens, LIMITS.kv_tokens, queued_tokens, None)
        for index, state in enumerate(states)
    )
    reported = ready + starting + unresponsive if applied is None else applied
    lanes = (lane_like("all", waiting, 1_000.0 * waiting, float(waiting > 0)),)
    flows = (FlowStats("all", "interactive", arrived, 1_000.0 * arrived, prompt_tokens, arrived, 0, 1.0),)
    return signals_like(
        at_s, 1e9 + at_s, 0.0, epoch, reported, starting, None, replicas, lanes, flows, ended, 0.0, ended, output_tokens
    )
