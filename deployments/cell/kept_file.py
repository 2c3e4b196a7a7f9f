"""Files of the run directory with what the next directory must know: the highest epochs that were issued or heard of,
so that none is issued again, and the spec in force, so that no older one comes back."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec

from cluster.files import write_private

log = logging.getLogger("raylane.directory")

EPOCH_FILE, SPEC_FILE = "epochs.json", "spec-in-force.json"
"""In the run directory."""
EpochByModel = dict[str, Annotated[int, msgspec.Meta(ge=0)]]


@dataclass(frozen=True, slots=True)
class SpecInForce:
    """`number`: a spec that is put in force later has a larger one. `deployed`: the digest of the spec that was
    deployed last. `cell_unix_s`: when the cell was brought up in which it is in force."""

    number: int = 0
    spec_json: str | None = None
    deployed: str = ""
    cell_unix_s: float = 0.0


ContentT = TypeVar("ContentT")


class KeptFile(Generic[ContentT]):
    """JSON of the type `kind`. `path`: the file; None: nothing is kept (a test's directory)."""

    def __init__(self, path: Path | None, kind: type[ContentT]) -> None:
        self._path = path
        self._kind = kind
        self._written = b""
        self._failing = False

    def read(self) -> ContentT:
        """What was written last; an empty one where there is no file. A file that cannot be read is logged and left
        out: what gateways and replicas know stands in for it."""
        if self._path is None or not self._path.exists():
            return self._kind()
        try:
            found = self._path.read_bytes()
            content = msgspec.json.decode(found, type=self._kind)
        except (OSError, msgspec.MsgspecError) as error:
            log.error("%s cannot be read, gateways and replicas tell what they know: %s", self._path, error)
            return self._kind()
        self._written = found
        return content

    def write(self, content: ContentT) -> None:
        """Keeps it, on the disk when it returns; the same as before is not written again. The first failure is logged:
        the cell must go on with a full disk too, and the next write tries again."""
        encoded = msgspec.json.encode(content)
        if self._path is None or encoded == self._written:
            return
        try:
            write_private(self._path, encoded.decode())
            self._written, self._failing = encoded, False
        except OSError as error:
            if not self._failing:
                log.error("%s cannot be written, gateways and replicas alone know it: %s", self._path, error)
            self._failing = True
