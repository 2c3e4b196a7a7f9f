"""Imports Ray before the tests do: its modules warn as they are imported, which is no fault of ours."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve.autoscaling_policy  # noqa: F401
