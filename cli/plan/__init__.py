"""`raylane plan`: which GPUs, how many, where, and for how much."""

from cli.plan.command import plan
