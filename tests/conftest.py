"""What all tests share: the count of skipped tests is always printed, so that a missing tool never passes unseen."""

from _pytest.terminal import TerminalReporter


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Prints the skipped count, 0 included."""
    terminalreporter.write_line(f"skipped: {len(terminalreporter.stats.get('skipped', []))}")
