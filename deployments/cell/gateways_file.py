"""The file in which commands on the directory's node find the gateways of a cell: the directory writes it, `raylane
status` and others read it. Importing it is cheap."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from cluster.files import write_whole

log = logging.getLogger("raylane.directory")

_NAME = "gateways.json"


def write_gateways(run_dir: Path, urls: Mapping[str, str]) -> None:
    """Keeps where each gateway, by its id, listens for its cell. A failure is logged: commands then need a URL."""
    try:
        write_whole(run_dir / _NAME, json.dumps(dict(urls)))
    except OSError as error:
        log.error("the gateways' addresses cannot be written: %s", error)


def read_gateways(run_dir: Path) -> list[str]:
    """The URLs that the directory wrote last; none where there is no such file."""
    try:
        found = json.loads((run_dir / _NAME).read_text(encoding="utf-8"))
        return [str(url) for url in found.values()]
    except (OSError, ValueError, AttributeError, RecursionError):
        return []
