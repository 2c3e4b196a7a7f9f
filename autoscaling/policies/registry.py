"""All policies by name: for the spec, the tuner, the conformance suite. To add one, write a file that
holds an `ENTRY`, and a line in `_MODULES`.

Listing a policy imports only its file: a policy that needs Ray imports it when it is first asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from autoscaling.policies.policy import PolicyEntry, ReplicaProfile, ScalingPolicy
from autoscaling.policies.settings import PolicyError, Value, settings_from

_MODULES = (
    "backlog.policy",
    "fixed",
    "rivals.ray_default",
    "rivals.hpa",
    "rivals.knative",
)
"""In this folder, each with its `ENTRY`."""

_ENTRIES: tuple[PolicyEntry, ...] = tuple(import_module(f".{name}", __package__).ENTRY for name in _MODULES)
POLICIES: Mapping[str, PolicyEntry] = {entry.name: entry for entry in _ENTRIES}


def make_policy(name: str, settings: Mapping[str, Value], replica_profile: ReplicaProfile) -> ScalingPolicy:
    """A new policy of that name with these settings, and its defaults for the rest. Raises PolicyError."""
    entry = POLICIES.get(name)
    if entry is None:
        raise PolicyError(f"policy {name!r}: no such policy; allowed: {', '.join(POLICIES)}")
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
