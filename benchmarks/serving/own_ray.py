"""A Ray for one server under test: its own folder, its own token, and an end on SIGINT or SIGTERM, wherever the program is at that moment."""

import contextlib
import secrets
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from cli.private_ray import private_ray

_BOOKABLE_CPUS = 16
"""What Ray may book, not what there is: `ray.serve.llm` books three for its ingress and its engine, and would wait for ever on two cores."""


@contextlib.contextmanager
def own_ray() -> Iterator[Path]:
    """Starts Ray; yields a folder that goes with it. A signal ends the block quietly."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="bench-ray-") as name:
        folder = Path(name)
        token_file = folder / "ray_token"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32), encoding="utf-8")
        with private_ray(_BOOKABLE_CPUS, token_file):
            yield folder


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
