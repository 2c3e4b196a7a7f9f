"""Test hosts on this machine: network namespaces, each with an address, process ids, a home, /tmp/ray and an sshd of
its own, so that `ray up` reaches them as it does machines, and what ends on one ends on no other. They share the rest
of the file system.

Needs root and Debian's iproute2, openssh-server and rsync. There is no systemd: a stand-in for `systemctl` runs the
command of a unit again and again, as `Restart=always` does.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

NETWORK = "10.77.0"
_BRIDGE = "raylane0"
_SSHD = "/usr/sbin/sshd"
_SYSTEMCTL = "/usr/bin/systemctl"

SYSTEMCTL = """#!/bin/sh
# A stand-in for systemd: runs the unit's ExecStart again and again, {restart_s} s after each end.
unit=/etc/systemd/system/$2
case $1 in
    restart)
        command=$(sed -n 's/^ExecStart=//p' "$unit" | sed 's/\\$\\$/$/g')
        [ -f "$unit.pid" ] && kill -s KILL -- "-$(cat "$unit.pid")" 2>/dev/null
        setsid env -i HOME="$HOME" PATH="$PATH" sh -c "while true; do $command; sleep {restart_s}; done" \\
            </dev/null >/tmp/ray/$2.log 2>&1 &
        echo $! > "$unit.pid" ;;
    stop)
        kill -s KILL -- "-$(cat "$unit.pid")" ;;
esac
exit 0
"""
RESTART_S = 2


def lacking(*more: str) -> str:
    """What this machine lacks for test hosts, and of these programs; empty: nothing."""
    if os.geteuid() != 0:
        return "root"
    needed = ("ip", "unshare", "ssh", "rsync", _SSHD, _SYSTEMCTL, *more)
    return next((program for program in needed if shutil.which(program) is None), "")


def on_test_hosts(*more: str) -> list[pytest.MarkDecorator]:
    """The marks of tests that need test hosts, and these programs."""
    missing = lacking(*more)
    needed = pytest.mark.skipif(bool(missing), reason=f"test hosts need {missing}")
    return [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(900), needed]


_started: dict[str, subprocess.Popen[bytes]] = {}
"""What runs a host's sshd, by the host's namespace."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class TestHost:
    """One host. Its processes are those of its network namespace, and `init` is the first of its process ids."""

    __test__ = False
    number: int
    folder: Path

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def namespace(self) -> str:
        return f"raylane{self.number}"

    @property
    def _link(self) -> str:
        return f"rlv{self.number}"

    def ssh(self, command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs a command as somebody who has logged in."""
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        login = ["ssh", *options, "-i", str(self.folder / "key"), f"root@{self.address}", command]
        return subprocess.run(login, capture_output=True, text=True, timeout=timeout_s, check=False)

    def processes(self) -> list[psutil.Process]:
        """The processes of the host, its sshd among them."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        return [psutil.Process(int(pid)) for pid in found.stdout.split() if psutil.pid_exists(int(pid))]

    @property
    def home(self) -> Path:
        return self.folder / f"home{self.number}"

    def keep_running(self, name: str, command: str, pause_s: int) -> None:
        """Runs a command again and again, `pause_s` after each end, as a unit of systemd would."""
        loop = self.folder / f"{name}{self.number}.sh"
        loop.write_text(f"#!/bin/sh\nwhile true; do {command}; sleep {pause_s}; done\n")
        self.ssh(f"setsid sh {loop} </dev/null >{loop}.log 2>&1 & echo $! >{loop}.pid")

    def stop_running(self, name: str) -> None:
        """Ends what `keep_running` has started."""
        self.ssh(f"kill -KILL -- -$(cat {self.folder}/{name}{self.number}.sh.pid)")

    def kill(self, *names: str) -> int:
        """Kills (SIGKILL) the host's processes of these names; without names, all but its sshd. Returns how many."""
        killed = 0
        for process in self.processes():
            try:
                name = process.name()
                if name in names or (not names and name not in ("sshd", "sh", "unshare")):
                    process.kill()
                    killed += 1
            except psutil.NoSuchProcess:
                continue
        return killed

    def cut(self) -> None:
        _ip("-n", self.namespace, "link", "set", "e0", "down")

    def mend(self) -> None:
        """Puts it back."""
        _ip("-n", self.namespace, "link", "set", "e0", "up")

    def start(self) -> None:
        ns, link = self.namespace, self._link
        _ip("netns", "add", ns)
        _ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", ns)
        _ip("link", "set", link, "master", _BRIDGE, "up")
        _ip("-n", ns, "addr", "add", f"{self.address}/24", "dev", "e0")
        _ip("-n", ns, "link", "set", "e0", "up")
        _ip("-n", ns, "link", "set", "lo", "up")
        own: dict[str, Path] = {name: self.folder / f"{name}{self.number}" for name in ("ray", "units", "home")}
        for folder in own.values():
            folder.mkdir()
        config = self.folder / f"sshd{self.number}.conf"
        config.write_text(
            f"Port 22\nListenAddress {self.address}\nHostKey {self.folder}/host_key\nStrictModes no\n"
            f"AuthorizedKeysFile {self.folder}/key.pub\nPasswordAuthentication no\nPermitRootLogin yes\n"
            f"PidFile none\n"
        )
        users = self.folder / f"passwd{self.number}"
        users.write_text(f"root:x:0:0:root:{own['home']}:/bin/bash\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n")
        (own["home"] / ".bashrc").touch()
        binds = {own["ray"]: "/tmp/ray", own["units"]: "/etc/systemd/system", self.folder / "systemctl": _SYSTEMCTL}
        binds[users] = "/etc/passwd"
        mounts = " && ".join(f"mount --bind {source} {target}" for source, target in binds.items())
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c"]
        with (self.folder / f"sshd{self.number}.log").open("wb") as log:
            _started[self.namespace] = subprocess.Popen(
                ["ip", "netns", "exec", ns, *inside, f"{mounts} && exec {_SSHD} -D -f {config}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        """Kills what is left of the host, and removes its namespace and link."""
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(self.processes(), timeout=5)
        # The kernel takes a namespace down later, with its link: the next run needs the link's name now.
        subprocess.run(["ip", "link", "del", self._link], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False)
        if started := _started.pop(self.namespace, None):
            started.wait(10)


@contextmanager
def test_hosts(folder: Path, count: int) -> Iterator[list[TestHost]]:
    """So many hosts, reachable by SSH with `folder`/key; nothing of them is left after the block."""
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "systemctl").write_text(SYSTEMCTL.format(restart_s=RESTART_S))
    (folder / "systemctl").chmod(0o755)
    for needed in ("/run/sshd", "/tmp/ray", "/etc/systemd/system"):
        Path(needed).mkdir(parents=True, exist_ok=True)
    hosts = [TestHost(number, folder) for number in range(2, count + 2)]
    _remove(hosts)
    _ip("link", "add", _BRIDGE, "type", "bridge")
    try:
        _ip("addr", "add", f"{NETWORK}.1/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for host in hosts:
            host.start()
        deadline = time.monotonic() + 20
        while any(host.ssh("true").returncode for host in hosts):
            assert time.monotonic() < deadline, "no sshd answers"
            time.sleep(0.2)
        yield hosts
    finally:
        _remove(hosts)


test_hosts.__test__ = False  # type: ignore[attr-defined]


def _remove(hosts: list[TestHost]) -> None:
    for host in hosts:
        host.end()
        # Who deploys remembers the keys of its hosts; the next ones have others.
        subprocess.run(["ssh-keygen", "-R", host.address], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", _BRIDGE], capture_output=True, check=False)


if __name__ == "__main__":  # for somebody who wants to look at them: `python -m tests.live.hosts FOLDER`
    place = Path(sys.argv[1])
    with test_hosts(place, 3) as started:
        print(*(host.address for host in started), flush=True)
        signal.pause()
