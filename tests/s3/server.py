"""A real S3 API on loopback: OpenStack Swift (PyPI `swift`) with its `s3api` and `tempauth` middleware, four processes.

Path-style addressing. It refuses a wrong key (a mock does not), and keeps multipart uploads, ranges and versions. Its
objects have an MD5 as ETag, those of multipart uploads the MD5 of their parts' MD5s; it stores no other checksum.
"""

import configparser
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCESS_KEY, SECRET_KEY, REGION = "test:tester", "testing", "us-east-1"
_STORES = ("account", "container", "object")
_PIPELINE = (
    "catch_errors proxy-logging cache listing_formats bulk s3api tempauth slo dlo versioned_writes symlink "
    "proxy-logging proxy-server"
)
_FILTERS: dict[str, dict[str, str]] = {
    "catch_errors": {},
    "proxy-logging": {"use": "egg:swift#proxy_logging"},
    # Nothing listens there: the middleware needs an address, and works without an answer.
    "cache": {"use": "egg:swift#memcache", "memcache_servers": "127.0.0.1:9"},
    "listing_formats": {},
    "bulk": {},
    "s3api": {"location": REGION, "s3_acl": "false"},
    "tempauth": {"user_test_tester": f"{SECRET_KEY} .admin"},
    "slo": {},
    "dlo": {},
    "versioned_writes": {"allow_object_versioning": "true"},
    "symlink": {},
}
_START_S = 30.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that runs. `endpoint` is its URL."""

    endpoint: str
    pids: tuple[int, ...]

    def client(self, endpoint: str | None = None, **config: Any) -> Any:
        """A boto3 client of it, by way of `endpoint` where a proxy stands in front."""
        import boto3
        from botocore.config import Config

        settings = {"s3": {"addressing_style": "path"}, "request_checksum_calculation": "when_required", **config}
        return boto3.client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(**settings),
        )

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What boto3's own chain reads."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextmanager
def s3_server(root: Path) -> Iterator[S3Server]:
    """Starts one that keeps its objects below `root`. Raises ModuleNotFoundError where Swift is not installed, and
    RuntimeError where it does not start."""
    import swift

    del swift
    (root / "srv" / "d1").mkdir(parents=True)
    (root / "etc").mkdir()
    ports = dict(zip((*_STORES, "proxy"), _free_ports(4), strict=True))
    _write_configuration(root, ports)
    _build_rings(root / "etc", ports)
    processes = []
    try:
        for name in (*_STORES, "proxy"):
            with (root / f"{name}.log").open("wb") as log:
                command = [_program(f"swift-{name}-server"), str(root / f"{name}.conf"), "-v"]
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=root))
        _wait_for(ports, processes, root)
        yield S3Server(f"http://127.0.0.1:{ports['proxy']}", tuple(process.pid for process in processes))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _free_ports(count: int) -> list[int]:
    with_sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in with_sockets]
    for one in with_sockets:
        one.close()
    return ports


def _write_configuration(root: Path, ports: dict[str, int]) -> None:
    shared = {"bind_ip": "127.0.0.1", "workers": "0", "swift_dir": str(root / "etc"), "user": _user()}
    for name in _STORES:
        default = {**shared, "bind_port": str(ports[name]), "devices": str(root / "srv"), "mount_check": "false"}
        sections = {
            "DEFAULT": default,
            "pipeline:main": {"pipeline": f"{name}-server"},
            f"app:{name}-server": {"use": f"egg:swift#{name}"},
        }
        _write(root / f"{name}.conf", sections)
    app = {"use": "egg:swift#proxy", "allow_account_management": "true", "account_autocreate": "true"}
    sections = {
        "DEFAULT": {**shared, "bind_port": str(ports["proxy"])},
        "pipeline:main": {"pipeline": _PIPELINE},
        "app:proxy-server": app,
        **{f"filter:{name}": {"use": f"egg:swift#{name}", **values} for name, values in _FILTERS.items()},
    }
    _write(root / "proxy.conf", sections)
    swift = {
        "swift-hash": {"swift_hash_path_suffix": "suffix", "swift_hash_path_prefix": "prefix"},
        "storage-policy:0": {"name": "p0", "default": "yes"},
    }
    _write(root / "etc" / "swift.conf", swift)


def _user() -> str:
    import getpass

    return getpass.getuser()


def _write(path: Path, sections: dict[str, dict[str, str]]) -> None:
    parser = configparser.RawConfigParser(default_section="nothing is in this one")
    parser.read_dict(sections)
    with path.open("w", encoding="utf-8") as file:
        parser.write(file)


def _build_rings(folder: Path, ports: dict[str, int]) -> None:
    for name in _STORES:
        builder = str(folder / f"{name}.builder")
        device = f"r1z1-127.0.0.1:{ports[name]}/d1"
        for step in (["create", "4", "1", "1"], ["add", device, "1"], ["rebalance"]):
            done = subprocess.run([_program("swift-ring-builder"), builder, *step], capture_output=True, check=False)
            if done.returncode > 1:  # 1: a warning
                raise RuntimeError(f"swift-ring-builder {name} {step[0]}: {done.stdout.decode()}")


def _wait_for(ports: dict[str, int], processes: list[subprocess.Popen[bytes]], root: Path) -> None:
    end = time.monotonic() + _START_S
    for (name, port), process in zip(ports.items(), processes, strict=True):
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"swift-{name}-server does not listen: {(root / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.05)
