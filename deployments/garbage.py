"""How the gateway's process collects cyclic garbage: rarely, and never what was there when it started.

A stream allocates a few objects for each token, so that Python's default (a collection every 700) walks the requests
that wait thousands of times a second. Nearly all of it is freed by reference counts alone.
"""

import gc

_THRESHOLDS = (50_000, 20, 50)


def calm_garbage_collector() -> None:
    """Call once, when the process is set up."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
