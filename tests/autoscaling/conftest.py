"""Imports Ray Serve before the tests do: its modules warn as they are imported, which is no fault of ours. Without
pandas, which it imports where it is installed, for DataFrames in answers: that takes a third of all imports of a test
process."""

import sys
import warnings

import pytest

with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
    warnings.simplefilter("ignore")
    if "pandas" not in sys.modules:
        patch.setitem(sys.modules, "pandas", None)  # type: ignore[arg-type]  # what Python takes for "not installed"
    import ray.serve.autoscaling_policy  # noqa: F401
