"""The run directory of a cluster on this machine: what `up` leaves for `down`, `status` and Prometheus to find.

`$RAYLANE_HOME` (else `~/.local/state/raylane`)/NAME holds `state.json`, `secret` and `ray_token` (both for their owner
alone), `shared_memory` (the files in /dev/shm that the cluster's processes use), `lock` (held by the `up` that runs)
and `logs/`. That of a cell on a Ray cluster that was running already lies on the cluster's head; no process holds such
a cell.
"""

import dataclasses
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from cli.console import fail
from cluster.files import write_private, write_whole


@dataclass(frozen=True)
class State:
    """A cluster that was brought up: the process that holds it, when that process began, where it answers, and how long
    its gateways may take to stop (`stop_s`).

    One on a Ray cluster that was running already has Ray's `address` (`host:port`) and the file of its token instead:
    no process holds it, and its gateways may move (`RunDir.urls`).
    """

    name: str
    pid: int
    pid_started: float
    url: str
    ray_temp_dir: str
    ready: bool
    address: str = ""
    token_file: str = ""
    stop_s: float = 0.0

    def process(self) -> psutil.Process | None:
        """That very process, if it still runs (a process id alone may have been given to another)."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.pid_started) < 1
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def alive(self) -> bool:
        """Whether it still runs. Of one that no process holds, this is not known here: until it is taken down, yes."""
        return bool(self.address) or self.process() is not None


class RunDir:
    """The folder of one cluster, within `$RAYLANE_HOME` or another folder."""

    def __init__(self, name: str, within: Path | None = None) -> None:
        self.name = name
        self.path = (within or home()) / name

    def create(self) -> None:
        """Makes the folder, readable by its owner alone."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.path / "logs").mkdir(exist_ok=True)

    def lock(self) -> AbstractContextManager[bool]:
        """Holds the cluster's name on this machine. Yields False when another process has it."""
        return locked(self.path / "lock")

    def state(self) -> State | None:
        """What `up` wrote last, or None."""
        try:
            return State(**json.loads((self.path / "state.json").read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def write_state(self, state: State) -> None:
        """Replaces the state in one move, so that a reader never sees half of it."""
        write_whole(self.path / "state.json", json.dumps(dataclasses.asdict(state)))

    def urls(self) -> list[str]:
        """Where the gateways of a cluster that is up answer commands: what `up` wrote, else what the directory did."""
        state = self.state()
        if state is None:
            return []
        if not state.address:
            return [state.url.rstrip("/")]
        from deployments.store import FILE_NAME, GATEWAYS, kept_in  # few commands need SQLite

        return list(kept_in(self.path / FILE_NAME, GATEWAYS, dict[str, str]).values())

    def clear_state(self) -> None:
        """The cluster is down."""
        (self.path / "state.json").unlink(missing_ok=True)

    def new_secret(self, file_name: str) -> str:
        """A fresh random secret, written to a file of mode 0600, and returned."""
        secret = secrets.token_hex(32)
        write_private(self.path / file_name, secret)
        return secret


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Holds the file's lock, which the kernel frees when the process ends, however it ends. Yields False when another
    process has it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def read_secret(file: Path, option: str = "") -> str:
    """A cell's secret. Ends the command where it cannot be used."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        fail(f"{option}{file}: {error.strerror}", code=2)
    return checked_secret(text, f"{option}{file}")


def checked_secret(secret: str, source: str) -> str:
    """The same. Ends the command where no HTTP header could carry it."""
    if not (secret.isascii() and secret.isprintable()):
        fail(f"{source}: is no secret of a cell; allowed: printable ASCII characters", code=2)
    return secret


def home() -> Path:
    """Where the run directories stand."""
    given = os.environ.get("RAYLANE_HOME")
    return Path(given).expanduser().resolve() if given else Path.home() / ".local" / "state" / "raylane"


def known_clusters(*, dead_too: bool = False) -> list[State]:
    """The clusters that run on this machine under this user, by their run directories; `dead_too`: and those that ended
    without cleaning up."""
    folders = sorted(home().iterdir()) if home().is_dir() else []
    states = [RunDir(folder.name).state() for folder in folders if folder.is_dir()]
    return [state for state in states if state is not None and (dead_too or state.alive())]
