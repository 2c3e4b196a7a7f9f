"""What all tests share: the count of skipped tests is always printed, so that a missing tool never passes unseen; and
hypothesis's profile."""

from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, Phase, settings

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


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Prints the skipped count, 0 included."""
    terminalreporter.write_line(f"skipped: {len(terminalreporter.stats.get('skipped', []))}")
