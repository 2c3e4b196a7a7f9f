"""All policies by name: for the spec, the tuner, the conformance suite. To add one, write a file that holds an `ENTRY`,
and a line in `POLICIES`."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaling.policies import fixed
from autoscaling.policies.backlog import policy as backlog
from autoscaling.policies.policy import PolicyEntry, ReplicaProfile, ScalingPolicy
from autoscaling.policies.settings import PolicyError, Value, settings_from

POLICIES: Mapping[str, PolicyEntry] = {one.ENTRY.name: one.ENTRY for one in (backlog, fixed)}


def make_policy(
    name: str,
    settings: Mapping[str, Value],
    replica_profile: ReplicaProfile,
    among: Mapping[str, PolicyEntry] = POLICIES,
) -> ScalingPolicy:
    """A new policy of that name with these settings, and its defaults for the rest. Raises PolicyError."""
    entry = among.get(name)
    if entry is None:
        raise PolicyError(f"policy {name!r}: no such policy; allowed: {', '.join(among)}")
    return entry.make(settings_from(name, entry.settings, settings), replica_profile)


@dataclass(frozen=True)
class PolicyChoice:
    """`settings`: all, or those that differ from the policy's defaults."""

    name: str
    settings: Mapping[str, Value]

    def make(self, replica_profile: ReplicaProfile) -> ScalingPolicy:
        """A new policy. Raises PolicyError that names it, the setting and what is allowed."""
        return make_policy(self.name, self.settings, replica_profile)


def remember(new: ScalingPolicy, old: ScalingPolicy | None) -> ScalingPolicy:
    """The new policy, which takes over what an old one of the same kind has learned if it has `adopt(old)`."""
    adopt = getattr(new, "adopt", None)
    if adopt is not None and type(old) is type(new):
        adopt(old)
    return new
