"""A law's default settings, as far as a spec has them."""

from dataclasses import MISSING, fields

from autoscaling.from_spec import is_paced
from autoscaling.laws.registry import LAWS
from autoscaling.laws.settings import LawError, Value


def defaults_of(policy: str) -> dict[str, Value]:
    """The law's settings. How often it is asked is none of them where the spec's `period_s` says so. Raises LawError for a law that there is not."""
    if policy not in LAWS:
        raise LawError(f"autoscaling.policy = {policy!r}: no such law; allowed: {', '.join(LAWS)}")
    ours = {"period_s"} if is_paced(policy) else set()
    return {field.name: field.default for field in fields(LAWS[policy].settings) if field.name not in ours and field.default is not MISSING}
