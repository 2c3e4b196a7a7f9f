"""`raylane deploy` to a Serve at a URL of this machine, without SSH: `ray up` has nothing to do there, and the head is
all there is.

usage: python -m tests.live.programs.deploy_to URL SPEC
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cli.deploy import command as deploy_command
from cli.deploy import steps
from cli.deploy.serve_api import DeployError, ServeApi
from cli.main import app
from cluster.launch import cell_folder

URL, SPEC = sys.argv[1:]


def ray_up(command: Sequence[str], folder: Path, log: Path | None = None) -> None:
    """The secrets come to the node, as `ray up` and rsync bring them."""
    shutil.copytree(folder / "secrets", Path.home() / cell_folder("deployed-here") / "secrets", dirs_exist_ok=True)


@contextmanager
def straight(hosts: steps.Hosts) -> Iterator[ServeApi]:
    """A machine answers once `ray up` has been asked for."""
    api = ServeApi(URL, hosts._token)
    if not hosts.record.read().files or not api.answers():
        raise DeployError("no answer")
    yield api


deploy_command.login = lambda deploy, address: ["sh", "-c"]  # the head's home is this one
steps.run = ray_up
steps._WORKERS_S = 0.0
steps.Hosts._api = straight  # type: ignore[method-assign,assignment]
app(["deploy", SPEC, "--yes"])
