"""Pretended replicas under an autoscaler: the writer of `scaling.jsonl.gz`.

Arrivals, lanes and replicas as fluids in virtual time, one reading every few seconds. The number that is decided is
applied; around it happens what an autoscaler must stand: replicas that fall silent, are cordoned or reclaimed (spot),
no room for more, another hand that writes the number, books that are old or gone, a new owner with new counts,
operators' words, changed bounds, a forecast that fails.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

from tests.recorded.scaling_adapter import Plain, RecordedAutoscaler
from tests.recorded.scaling_runs import ScalingRun

UNIX_S = 1_700_000_000.0
PROMPT, OUTPUT, SERVICE_S, SEATS = 800, 200, 8.0, 16
CLASSES = (("short", "interactive", 0.7, 2.0, 0.95), ("long", "batch", 0.3, 30.0, 0.99))
"""Lane, class, share of arrivals, promised TTFT (seconds), share of promises to keep."""


@dataclass
class _Replica:
    name: str
    ready_s: float
    state: str = "ready"
    until_s: float = math.inf


def load_of(kind: str, at_s: float) -> float:
    """Arrivals in replicas' worth."""
    match kind:
        case "day":
            return 2.5 + 2.0 * math.sin(at_s / 600.0)
        case "ramp":
            return (
                0.8
                + 3.2 * max(0.0, min(1.0, (at_s - 600.0) / 300.0))
                - 3.5 * max(0.0, min(1.0, (at_s - 1_800.0) / 300.0))
            )
        case "silence":
            return 0.0 if at_s % 2_400.0 > 900.0 else 2.2
        case "bursts":
            return 5.0 if at_s % 700.0 < 60.0 else 1.0
        case "trickle":
            return 0.02
        case _:
            raise ValueError(kind)


BOUNDS: Plain = {
    "min": 1,
    "max": 8,
    "ceiling": None,
    "up_per_min": None,
    "down_per_min": None,
    "stale_s": 5.0,
    "silent_s": 60.0,
    "unschedulable_s": 900.0,
    "retry_s": 300.0,
}


class Replicas:
    """See the module's docstring."""

    def __init__(self, run: ScalingRun, seed: int) -> None:
        self.run = run
        self.dice = random.Random(f"{run.name} {seed}")
        self.bounds = {**BOUNDS, **run.bounds}
        replica = {
            "sequences": SEATS,
            "step_tokens": 2_048,
            "kv_tokens": 60_000,
            "decode_weight": 4.0,
            "start_up_s": run.start_up_s,
            "measured": run.measured,
        }
        policy = {"name": run.policy, "settings": run.settings}
        self.lines: list[Plain] = [{"run": run.name, "policy": policy, "bounds": self.bounds, "replica": replica}]
        self.autoscaler = RecordedAutoscaler(policy, self.bounds, replica)
        self.now = 10.0
        self.replicas: list[_Replica] = []
        self.names = 0
        self.epoch = 1
        self.schedulable: int | None = None
        self.controls: list[Plain] = []
        self.unseen_until_s = self.old_until_s = self.failed_until_s = 0.0
        self.waiting = dict.fromkeys(("short", "long"), 0.0)
        self.running = 0.0
        self._reset()
        self._apply(max(1, self.bounds["min"]), ready=True)

    def _reset(self) -> None:
        """A new owner counts from zero."""
        self.counts = {name: {"arrived": 0.0, "in_time": 0.0, "late": 0.0} for name, *_ in CLASSES}
        self.finished = 0.0

    def lines_of_run(self) -> list[Plain]:
        """Runs to its end."""
        for _ in range(self.run.readings):
            self._trouble()
            self._flow()
            self._decide()
            self.now = round(self.now + self.run.every_s, 3)
        return self.lines

    def _decide(self) -> None:
        applied = len(self._applied())
        if self.now < self.unseen_until_s:
            given: Plain = {
                "at_s": self.now,
                "unix_s": UNIX_S + self.now,
                "applied": applied,
                "controls": self.controls,
            }
            decision = self.autoscaler.decide_unseen(self.now, UNIX_S + self.now, applied, self.controls)
            self.lines.append({"unseen": given, "decision": decision})
        else:
            facts = self._facts(applied)
            decision = self.autoscaler.decide(facts, self.controls)
            self.lines.append({"facts": facts, "controls": self.controls, "decision": decision})
        self._apply(decision["requested"])

    def _applied(self) -> list[_Replica]:
        return [one for one in self.replicas if one.state != "draining"]

    def _apply(self, number: int, ready: bool = False) -> None:
        applied = self._applied()
        for _ in range(number - len(applied)):
            self.names += 1
            late_s = 0.0 if ready else self.run.start_up_s * self.dice.choice((0.9, 1.0, 1.3))
            if self.schedulable is not None and len(self._applied()) >= self.schedulable:
                late_s = 1e6  # there is no room for it
            self.replicas.append(_Replica(f"r{self.names}", round(self.now + late_s, 3)))
        for one in sorted(applied, key=lambda one: -one.ready_s)[: max(0, len(applied) - number)]:
            one.state, one.until_s = "draining", self.now + 20.0

    def _flow(self) -> None:
        """Lets the time of one reading pass."""
        every_s, dice = self.run.every_s, self.dice
        for one in self.replicas:
            if one.ready_s > self.now and one.state == "draining":
                one.until_s = self.now
        self.replicas = [one for one in self.replicas if one.until_s > self.now]
        serving = [
            one for one in self.replicas if one.ready_s <= self.now and one.state in ("ready", "cordoned", "draining")
        ]
        open_ = sum(one.state == "ready" for one in serving)
        rate = load_of(self.run.load, self.now) * SEATS / SERVICE_S
        done = min(self.running, len(serving) * SEATS) * (1.0 - math.exp(-every_s / SERVICE_S))
        self.running = min(self.running - done, float(len(serving) * SEATS))
        self.finished += done
        for lane, _, share, slo_s, _ in CLASSES:
            new = float(round(rate * share * every_s * dice.uniform(0.6, 1.4)))
            self.counts[lane]["arrived"] += new
            self.waiting[lane] += new
            placed = min(self.waiting[lane], max(0.0, open_ * SEATS - self.running))
            wait_s = self.waiting[lane] * SERVICE_S / max(1.0, open_ * SEATS)
            self.waiting[lane] -= placed
            self.running += placed
            self.counts[lane]["in_time" if wait_s <= slo_s else "late"] += placed

    def _facts(self, applied: int) -> Plain:
        dice, now = self.dice, self.now
        there = [one for one in self.replicas if one.ready_s <= now]
        each = self.running / max(1, len(there))
        work = PROMPT + 4.0 * OUTPUT
        return {
            "at_s": now,
            "unix_s": UNIX_S + now,
            "age_s": 9.0 if now < self.old_until_s else round(dice.uniform(0.0, 1.5), 3),
            "epoch": self.epoch,
            "applied": applied,
            "starting": max(0, applied - sum(one.state != "draining" for one in there)),
            "schedulable": self.schedulable if dice.random() < 0.5 else None,
            "replicas": [
                {
                    "name": one.name,
                    "state": one.state,
                    "sequences": round(each),
                    "max_sequences": SEATS,
                    "kv_tokens": round(each * (PROMPT + OUTPUT)),
                    "max_kv_tokens": 60_000,
                    "prefill_tokens": dice.choice((0, 0, 800, 2_400)),
                    "tpot_s": None if each < 1 else round(0.02 + 0.001 * each, 4),
                }
                for one in there
            ],
            "lanes": [
                {
                    "name": lane,
                    "waiting": round(count),
                    "work": round(count) * work,
                    "oldest_wait_s": round(count * SERVICE_S / max(1.0, len(there) * SEATS), 3),
                }
                for lane, count in self.waiting.items()
            ],
            "flows": [
                {
                    "lane": lane,
                    "class": name,
                    "arrived": round(self.counts[lane]["arrived"]),
                    "work": round(self.counts[lane]["arrived"]) * work,
                    "prompt_tokens": round(self.counts[lane]["arrived"]) * PROMPT,
                    "in_time": round(self.counts[lane]["in_time"]),
                    "late": round(self.counts[lane]["late"]),
                    "slo_s": slo_s,
                    "attainment": attainment,
                }
                for lane, name, _, slo_s, attainment in CLASSES
            ],
            "finished": round(self.finished),
            "finished_work": round(self.finished) * work,
            "counted": round(self.finished),
            "output_tokens": round(self.finished) * OUTPUT,
            "forecast": self._forecast(work) if self.run.forecast and now >= self.failed_until_s else None,
            "forecast_failed": now < self.failed_until_s,
        }

    def _forecast(self, work: float) -> Plain:
        start_s = UNIX_S + self.now // 60.0 * 60.0
        rates = [
            load_of(self.run.load, start_s - UNIX_S + 60.0 * step) * SEATS / SERVICE_S * work for step in range(12)
        ]
        return {
            "at_s": start_s,
            "step_s": 60.0,
            "work_per_s": [round(one, 1) for one in rates],
            "error": [round(0.1 * one, 1) for one in rates],
        }

    def _trouble(self) -> None:
        dice = self.dice
        if dice.random() >= self.run.troubles * self.run.every_s / 3_600.0:
            return
        there = [one for one in self.replicas if one.ready_s <= self.now and one.state == "ready"]
        one: Any = dice.choice(there) if there else None
        kind = dice.choice(_TROUBLES)
        if kind in ("silent", "cordoned") and one is not None:
            one.state = kind
        elif kind == "reclaimed" and one is not None:
            one.state, one.until_s = "draining", self.now + 30.0
        elif kind == "gone" and one is not None:
            one.until_s = self.now
        elif kind == "all back":
            for each in self.replicas:
                each.state = "ready" if each.state in ("silent", "cordoned") else each.state
        elif kind == "room":
            self.schedulable = dice.choice((None, len(there), len(there) + 1, 6))
        elif kind == "old":
            self.old_until_s = self.now + dice.choice((5.0, 90.0))
        elif kind == "unseen":
            self.unseen_until_s = self.now + dice.choice((5.0, 60.0))
        elif kind == "owner":
            self.epoch += 1
            self._reset()
        elif kind in ("hold", "pin"):
            until_unix_s = UNIX_S + self.now + dice.choice((30.0, 300.0))
            self.controls = [
                *self.controls[-1:],
                {"kind": kind, "replicas": dice.randint(0, 9), "until_unix_s": until_unix_s},
            ]
        elif kind == "other hand":
            self._apply(dice.randint(1, 6))
        elif kind == "forecast fails" and self.run.forecast:
            self.failed_until_s = self.now + 120.0
        elif kind == "bounds":
            self.bounds = {
                **self.bounds,
                **dice.choice(({"max": 5}, {"max": 8}, {"ceiling": 4}, {"ceiling": None}, {"up_per_min": 1.0})),
            }
            self.autoscaler.rebound(self.bounds)
            self.lines.append({"bounds": self.bounds})


_TROUBLES = (
    *("silent", "silent", "cordoned", "reclaimed", "gone", "all back", "all back", "room", "old", "unseen"),
    *("owner", "hold", "pin", "other hand", "forecast fails", "bounds"),
)
