"""The keys of what scales by itself: a model, or one group of a model that has several."""

DEFAULT_GROUP = "default"
"""The name of the one group of a model without `groups`."""


def model_of(group_key: str) -> str:
    """The model's name in a `Model.group_key`."""
    return group_key.partition("@")[0]


def group_of(group_key: str) -> str | None:
    """The group's name in a `Model.group_key`; None: the model has only one."""
    return group_key.partition("@")[2] or None
