"""A cell's store, as its directory leaves it."""

from collections.abc import Mapping
from pathlib import Path

from deployments.store import FILE_NAME, GATEWAYS, CellStore, KeptValue
from deployments.traffic.counts import Stretches
from deployments.traffic.store import add_traffic


def keep_gateways(run_dir: Path, urls: Mapping[str, str]) -> None:
    store = CellStore(run_dir / FILE_NAME)
    assert KeptValue(store, GATEWAYS, dict[str, str]).write(dict(urls))
    store.close()


def keep_traffic(path: Path, counted: Stretches) -> Path:
    store = CellStore(path)
    store.write(lambda file: add_traffic(file, "gateway", 1, counted))
    store.close()
    return path
