"""A lane: the queue of requests that wait for a replica, first in first out, with cancellation in constant time."""

from collections import OrderedDict

from deployments.scheduling.request import Request


class Lane:
    """Requests by id, oldest first. `tokens` is the work that waits: prompt plus expected output, over all sequences."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokens = 0
        self._waiting: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def push(self, request: Request) -> None:
        """Puts a request at the end."""
        self._waiting[request.request_id] = request
        self.tokens += request.kv_tokens

    def push_front(self, request: Request) -> None:
        """Puts a request at the head: one that was placed already and refused by a draining replica."""
        self.push(request)
        self._waiting.move_to_end(request.request_id, last=False)

    def head(self) -> Request | None:
        """The request that is next."""
        return next(iter(self._waiting.values()), None)

    def remove(self, request_id: str) -> Request | None:
        """Takes a request out, wherever it stands; None when it does not wait here."""
        request = self._waiting.pop(request_id, None)
        if request is not None:
            self.tokens -= request.kv_tokens
        return request
