"""Where a node keeps the files of the models that it serves."""

from typing import Annotated

from pydantic import Field

from cluster.spec.base import Section


class Artifacts(Section):
    """The node-local cache of model files (`cluster/artifacts`, `docs/artifacts.md`).

    `cache` is a folder, the same on every node. `max_gib` limits what it holds: before a download, the files that were
    used least recently go, but never those that a running process uses. Without a limit the disk is one. With
    `copy_folders` a local folder is copied into the cache, too, which is worth its while where the folder is on a
    network file system.

    Region, endpoint and credentials of `s3://` come from boto3's own chain (`AWS_ENDPOINT_URL`, `AWS_PROFILE`, an
    instance's role, ...), on each node.
    """

    cache: Annotated[str, Field(pattern=r"^(/|~/|~$)")] = "~/.cache/raylane/models"
    max_gib: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    copy_folders: bool = False

    @property
    def max_bytes(self) -> int | None:
        """The limit of the cache."""
        return None if self.max_gib is None else int(self.max_gib * (1 << 30))
