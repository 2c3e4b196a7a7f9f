"""A cell's store, as its directory leaves it."""

from collections.abc import Mapping
from pathlib import Path

from deployments.store import FILE_NAME, GATEWAYS, CellStore, KeptValue


def keep_gateways(run_dir: Path, urls: Mapping[str, str]) -> None:
    store = CellStore(run_dir / FILE_NAME)
    assert KeptValue(store, GATEWAYS, dict[str, str]).write(dict(urls))
    store.close()
