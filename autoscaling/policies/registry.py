"""All policies by name: for the spec, the tuner, the conformance suite. To add one, write a file that holds an `ENTRY`,
and a line in `POLICIES`; or name the `ENTRY` of a package of your own as an entry point of the group
`raylane.scaling_policies`."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from autoscaling.policies import fixed
from autoscaling.policies.backlog import policy as backlog
from autoscaling.policies.policy import PolicyEntry, ReplicaProfile, ScalingPolicy
from autoscaling.policies.settings import PolicyError, Value, settings_from

OUTSIDE = "raylane.scaling_policies"
POLICIES: Mapping[str, PolicyEntry] = {one.ENTRY.name: one.ENTRY for one in (backlog, fixed)}


def entry_of(name: str, among: Mapping[str, PolicyEntry] = POLICIES) -> PolicyEntry:
    """The policy of that name, of raylane or of an installed package. Raises PolicyError."""
    if name in among:
        return among[name]
    outside = entry_points(group=OUTSIDE)
    for point in outside.select(name=name):
        entry = point.load()
        if isinstance(entry, PolicyEntry) and entry.name == name:
            return entry
        raise PolicyError(f"policy {name!r}: {point.value} is no PolicyEntry of that name (entry point {OUTSIDE})")
    raise PolicyError(f"policy {name!r}: no such policy; allowed: {', '.join([*among, *sorted(outside.names)])}")


def outside_packages() -> dict[str, str]:
    """The installed policies that are no part of raylane, and the package of each, whose classes may stand in logs."""
    return {point.name: point.module.partition(".")[0] for point in entry_points(group=OUTSIDE)}


def make_policy(
    name: str,
    settings: Mapping[str, Value],
    replica_profile: ReplicaProfile,
    among: Mapping[str, PolicyEntry] = POLICIES,
) -> ScalingPolicy:
    """A new policy of that name with these settings, and its defaults for the rest. Raises PolicyError."""
    entry = entry_of(name, among)
    return entry.make(settings_from(name, entry.settings, settings), replica_profile)


@dataclass(frozen=True)
class PolicyChoice:
    """`settings`: all, or those that differ from the policy's defaults."""

    name: str
    settings: Mapping[str, Value]

    def make(self, replica_profile: ReplicaProfile) -> ScalingPolicy:
        """A new policy. Raises PolicyError that names it, the setting and what is allowed."""
        return make_policy(self.name, self.settings, replica_profile)


def remember(new: ScalingPolicy, old: ScalingPolicy | None, idle_s: float = 0.0) -> ScalingPolicy:
    """The new policy, which takes over what an old one of the same kind has learned: all of it, if it has `adopt(old)`;
    what stays true for long, if it has `resume(old, idle_s)` and the old one was last asked `idle_s` ago."""
    taking = getattr(new, "resume" if idle_s else "adopt", None)
    if taking is not None and type(old) is type(new):
        taking(*(old, idle_s) if idle_s else (old,))
    return new
