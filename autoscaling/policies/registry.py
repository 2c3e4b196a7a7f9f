"""All policies by name: for the spec, the tuner, the gauntlet, the conformance suite. Adding one: a file that holds an
`ENTRY`, and a line in `_MODULES`.

Policies are listed without what they need to run: a policy that imports Ray does so when it is asked for the first
time.
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
    "rivals.ray_ttft",
    "rivals.hpa",
    "rivals.keda",
    "rivals.knative",
    "rivals.aibrix",
    "rivals.dynamo",
    "rivals.llmd",
)
"""In this folder, each with its `ENTRY`."""

_ENTRIES: tuple[PolicyEntry, ...] = tuple(import_module(f".{name}", __package__).ENTRY for name in _MODULES)
POLICIES: Mapping[str, PolicyEntry] = {entry.name: entry for entry in _ENTRIES}


def make_policy(name: str, settings: Mapping[str, Value], replica_profile: ReplicaProfile) -> ScalingPolicy:
    """The policy of that name, new, with these settings and its defaults for the rest. Raises PolicyError."""
    entry = POLICIES.get(name)
    if entry is None:
        raise PolicyError(f"policy {name!r}: no such policy; allowed: {', '.join(POLICIES)}")
    return entry.make(settings_from(name, entry.settings, settings), replica_profile)


@dataclass(frozen=True)
class PolicyChoice:
    """`settings`: those that differ from the policy's defaults, or all."""

    name: str
    settings: Mapping[str, Value]

    def make(self, replica_profile: ReplicaProfile) -> ScalingPolicy:
        """The policy, new. Raises PolicyError that names it, the setting and what is allowed."""
        return make_policy(self.name, self.settings, replica_profile)


def remember(new: ScalingPolicy, old: ScalingPolicy | None) -> ScalingPolicy:
    """The new policy with what the old one has learned, where it can make use of it: policies of a kind whose
    `adopt(old)` takes it over."""
    adopt = getattr(new, "adopt", None)
    if adopt is not None and type(old) is type(new):
        adopt(old)
    return new
