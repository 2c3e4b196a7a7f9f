"""What can be added to the scheduler by one file and one line here (docs/extending.md): picks, by name, and rejection
rules, in their order."""

from collections.abc import Mapping

from deployments.scheduling.admission import (
    RejectionRule,
    duplicate_id,
    lane_full,
    model_full,
    query_of_death,
    starts_too_late,
    tenant_limits,
)
from deployments.scheduling.pick import MinTtft, Pick

PICKS: Mapping[str, Pick] = {
    "min_ttft": MinTtft(),
}

REJECTION_RULES: tuple[RejectionRule, ...] = (
    duplicate_id,
    query_of_death,
    starts_too_late,
    tenant_limits,
    model_full,
    lane_full,
)


def pick_named(name: str) -> Pick:
    """Raises ValueError where there is none of that name."""
    if name not in PICKS:
        raise ValueError(f"pick = {name!r}; allowed: {', '.join(PICKS)}")
    return PICKS[name]
