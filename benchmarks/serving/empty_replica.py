"""The yardstick for the gateway's memory: a Serve replica that does nothing, on a Ray of its own.

`python -m benchmarks.serving.empty_replica FILE` writes the replica's process id into FILE and stays until SIGINT or SIGTERM.
"""

import os
import signal
import sys
from pathlib import Path

from benchmarks.serving.own_ray import own_ray


class Empty:
    """A deployment without a line of its own."""

    def pid(self) -> int:
        """The replica's process."""
        return os.getpid()


def main(pid_file: Path) -> None:
    """Serves nothing until it is told to end."""
    with own_ray():
        from ray import serve

        serve.start(proxy_location="Disabled")
        handle = serve.run(serve.deployment(Empty).bind(), name="empty", route_prefix=None)
        pid_file.write_text(str(handle.pid.remote().result()), encoding="utf-8")
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
