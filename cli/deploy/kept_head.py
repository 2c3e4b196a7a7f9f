"""`python -m cli.deploy.kept_head up ...`: Ray's launcher where an Auto Scaling group keeps the head. It sets up the
instance that there is, and neither starts one nor ends it: to Ray, an instance that it did not start is out of date.
"""

import sys

from ray.autoscaler._private import commands
from ray.scripts.scripts import main


def _is_new_head_needed(head: str | None, *_: object) -> bool:
    if head is None:
        sys.exit("the Auto Scaling group of the head has no instance that runs; wait for it, and repeat the command")
    return False


if __name__ == "__main__":
    assert callable(commands._should_create_new_head)
    commands._should_create_new_head = _is_new_head_needed
    main()
