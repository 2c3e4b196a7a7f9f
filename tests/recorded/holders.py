"""Gateways' clients and the leases that they hold of an owner, at random: a part of `gateways.py`."""

import random
from typing import Any

from tests.recorded.owner_adapter import RecordedOwner
from tests.recorded.scheduler_adapter import Plain

GATEWAYS = ("g1", "g2", "g3")


class Holders:
    """`requests` are those whose clients wait; `runs` is what each replica runs, by engine id. What an owner is told,
    and its words, become lines."""

    def __init__(self, seed: int, inputs: int) -> None:
        self.dice = random.Random(f"gateways {seed}")
        self.inputs = inputs
        self.lines: list[Plain] = []
        self.owner = RecordedOwner()
        self.now = 50.0
        self.epoch = 0
        self.names = 0
        self.channels = dict.fromkeys(GATEWAYS, 1)
        self.requests: dict[str, Plain] = {}
        self.runs: dict[str, dict[str, Plain]] = {}
        self.drains: set[str] = set()
        self.cordoned: list[str] = []
        self.over: list[str] = []

    def _tell(self, name: str, /, **given: Any) -> None:
        reported = self.owner.apply(name, given, self.now)
        self.lines.append({"at": self.now, "input": name, "with": given, "told": reported})
        for channel, word, *rest in reported:
            self._heard(channel, word, rest)

    def _heard(self, channel: str, word: str, rest: list[Any]) -> None:
        """What gateways make of the owner's words."""
        request = self.requests.get(rest[0]) if word in ("admission", "placed", "expired") else None
        if request is None:
            return
        if word == "expired" or (word == "admission" and rest[1]["kind"] not in ("admit", "queue")):
            del self.requests[rest[0]]
        elif word == "placed" and self.dice.random() < 0.98:  # now and then the word is lost with its channel
            placed = rest[1]
            request.update(
                engine_id=placed["engine_id"], attempt=placed["attempt"], replica=placed["replica"], started=False
            )
            if placed["replica"] in self.runs and placed["replica"] not in self.drains:
                asked = request["asked"]
                self.runs[placed["replica"]][placed["engine_id"]] = {
                    "gateway": channel.partition("/")[0],
                    "request": asked["id"],
                    **{name: asked[name] for name in ("tenant", "prompt_tokens", "max_tokens", "sequences", "digest")},
                    **{
                        name: placed[name]
                        for name in ("attempt", "prefill_tokens", "kv_tokens", "output_tokens", "home")
                    },
                    "started": False,
                }

    # Clients

    def _ask(self) -> None:
        dice = self.dice
        if len(self.requests) > 120:
            return
        self.names += 1
        gateway = dice.choice(GATEWAYS)
        asked = {
            "id": f"{gateway}-q{self.names}",
            "prompt_tokens": dice.choice((10, 60, 300, 1_500)),
            "max_tokens": dice.choice((None, 20, 200)),
            "arrived_s": self.now,
            "deadline_s": round(self.now + dice.choice((0.5, 2.0)), 3),
            "expires_s": round(self.now + dice.choice((1.0, 5.0, 30.0)), 3),
            "sequences": dice.choice((1, 1, 1, 1, 2)),
            "class": "interactive",
            "tenant": dice.choice(("gold", "free", "busy", "other")),
            "prefix": [],
            "chunk_tokens": 0,
            "attempts": 0,
            "digest": f"body{dice.randrange(400)}",
        }
        self.requests[asked["id"]] = {
            "asked": asked,
            "gateway": gateway,
            "engine_id": None,
            "attempt": 0,
            "replica": "",
            "started": False,
        }
        self._tell("submit", gateway=self._channel(gateway), request=asked, admitted=False)

    def _channel(self, gateway: str) -> str:
        return f"{gateway}/{self.channels[gateway]}"

    def _any(self, runs: bool) -> tuple[str, Plain] | None:
        found = [(name, one) for name, one in self.requests.items() if (one["engine_id"] is not None) == runs]
        return self.dice.choice(found) if found else None

    def _cancel(self) -> None:
        found = self._any(self.dice.random() < 0.3)
        if found is None:
            return
        name, one = found
        del self.requests[name]
        if one["engine_id"] is None:
            self._tell("cancel", request=name)
        else:
            self._stops(one)
            self._tell("release", engine_id=one["engine_id"], ending="cancelled")
            self._account(one["engine_id"], False)

    # Leases

    def _first_token(self) -> None:
        found = self._any(True)
        if found is not None:
            one = found[1]
            one["started"] = True
            if (run := self.runs.get(one["replica"], {}).get(one["engine_id"])) is not None:
                run["started"] = True
            self._tell("first_token", engine_id=one["engine_id"])

    def _finish(self) -> None:
        found = self._any(True)
        if found is None:
            return
        name, one = found
        del self.requests[name]
        self._stops(one)
        before = self.dice.random() < 0.5
        if before:
            self._account(one["engine_id"], True)
        self._tell("release", engine_id=one["engine_id"], ending="finished")
        if not before:
            self._account(one["engine_id"], True)
        self.over.append(one["engine_id"])

    def _account(self, attempt_id: str, whole: bool) -> None:
        self._tell(
            "account",
            engine_id=attempt_id,
            sequences=int(whole),
            prompt_tokens=100,
            output_tokens=self.dice.choice((5, 50)),
            prefill_s=round(self.dice.uniform(0.01, 0.1), 3),
            decode_s=round(self.dice.uniform(0.1, 1.0), 3),
        )

    def _fail(self) -> None:
        found = self._any(True)
        if found is None:
            return
        name, one = found
        if self.dice.random() < 0.3:
            self._tell("died_under", engine_id=one["engine_id"])
        del self.requests[name]
        self._stops(one)
        self._tell("release", engine_id=one["engine_id"], ending="failed")

    def _refuse(self) -> None:
        """The replica takes no work, or the lease was of no use: the request waits again."""
        found = self._any(True)
        if found is None or found[1]["started"]:
            return
        one = found[1]
        self._stops(one)
        attempt_id, one["engine_id"] = one["engine_id"], None
        channel = self._channel(one["gateway"])
        if self.dice.random() < 0.5:
            self._tell("again", gateway=channel, engine_id=attempt_id)
        else:
            self._tell("refused", gateway=channel, engine_id=attempt_id, state=self.dice.choice((None, "draining")))

    def _stops(self, one: Plain) -> None:
        self.runs.get(one["replica"], {}).pop(one["engine_id"], None)

    def _twice(self) -> None:
        """What was told before, or is long over."""
        dice = self.dice
        if self.over and dice.random() < 0.5:
            attempt_id = dice.choice(self.over[-50:])
            self._tell("first_token", engine_id=attempt_id)
            self._tell("release", engine_id=attempt_id, ending="failed")
            self._account(attempt_id, dice.random() < 0.5)
        elif (found := self._any(False)) is not None:
            self._tell("submit", gateway=self._channel(found[1]["gateway"]), request=found[1]["asked"], admitted=False)
