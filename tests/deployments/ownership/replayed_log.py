"""A decision log for owners in tests: what cannot be written fails the test, and as the owner ends, all that it decided
is decided again."""

from deployments.decision_log import DecisionLog
from deployments.decisions import Entry, replay
from deployments.scheduling.recorder import SCHEDULING
from deployments.wire import decoder, encode


class ReplayedLog(DecisionLog):
    """In memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def due(self) -> bool:
        return not self.entries

    def write(self, entry: Entry) -> None:
        self.entries.append(decoder(type(entry))(encode(entry)))

    def lost(self, error: Exception) -> None:
        raise error

    def close(self) -> None:
        if self.entries:
            assert replay(self.entries, (SCHEDULING,)).difference is None
