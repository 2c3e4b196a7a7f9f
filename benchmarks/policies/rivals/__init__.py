"""The scaling policies of others, ported from their sources for comparison: one file for each policy, and shared parts
beside them.

Each module's docstring names the project, the file and the version that it follows, gives the policy as equations, and
says what was left out. Defaults are those of the project. Gauges of a pod are derived from the scheduler's snapshot:
requests in the lanes are its waiting requests, leased sequences its running ones, and booked KV tokens over those that
fit its KV usage. Our autoscaler applies the bounds.
"""

from collections.abc import Mapping

from autoscaling.policies.policy import PolicyEntry, ReplicaProfile, ScalingPolicy
from autoscaling.policies.registry import POLICIES
from autoscaling.policies.registry import make_policy as make_one_of
from autoscaling.policies.settings import Value
from benchmarks.policies.rivals import hpa, knative, ray_default

ALL_POLICIES: Mapping[str, PolicyEntry] = {
    **POLICIES,
    **{one.ENTRY.name: one.ENTRY for one in (ray_default, hpa, knative)},
}


def make_policy(name: str, settings: Mapping[str, Value], replica_profile: ReplicaProfile) -> ScalingPolicy:
    """A new policy, raylane's own or of others. Raises PolicyError."""
    return make_one_of(name, settings, replica_profile, ALL_POLICIES)
