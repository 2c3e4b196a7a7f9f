"""What all tests share: the count of skipped tests is always printed, so that a missing tool never passes unseen;
hypothesis's profiles; and when the garbage collector runs."""

import gc
import signal
from collections.abc import Generator

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, Phase, settings

from deployments.garbage import calm_garbage_collector

settings.register_profile("raylane", deadline=None)  # a busy machine is no failure
settings.register_profile("fast", deadline=None, max_examples=20)  # `make test-fast`
# Mutants (tests/mutation): the same examples every time, none kept, nothing shrunk; instrumented code is slow code.
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("raylane")

# Commands that tests start and end by Ctrl-C inherit what this process does with it: a shell ignores it for what it
# starts in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from what is imported, while and after it is: nearly all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        calm_garbage_collector()


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Prints the skipped count, 0 included."""
    terminalreporter.write_line(f"skipped: {len(terminalreporter.stats.get('skipped', []))}")
