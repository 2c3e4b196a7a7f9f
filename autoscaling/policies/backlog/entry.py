"""What the registry knows of the backlog policy."""

from autoscaling.policies.backlog.policy import BacklogPolicy
from autoscaling.policies.backlog.settings import BacklogSettings
from autoscaling.policies.policy import PolicyEntry
from autoscaling.policies.settings import Range

ENTRY = PolicyEntry(
    "backlog",
    BacklogSettings,
    BacklogPolicy,
    "raylane's own: by the work that waits and arrives, in seconds of what the replicas can do",
    {
        "short_cost": Range(1, 100_000, log=True),
        "utilisation": Range(0.7, 1.0),
        "occupancy": Range(0.7, 1.0),
        "level_s": Range(60, 600, log=True),
        "target_wait": Range(0.2, 1.0),
        "recover_s": Range(10, 300, log=True),
        "down_after_s": Range(10, 1_800, log=True),
        "down_starts": Range(0.1, 4, log=True),
        "margin": Range(0.0, 0.5),
        "burn": Range(3, 100, log=True),
    },
    principal=("short_cost", "down_after_s", "target_wait"),
)
