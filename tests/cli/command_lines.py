"""Command lines drawn from what `raylane` declares (commands, options, types, bounds), with values that nobody hopes
for, run in one process: `python -m tests.cli.command_lines --seed 1 --only 17 --keep FOLDER` repeats one.

The process refuses itself connections but to closed loopback ports, listening, and other programs: a drawn command may
do nothing to this machine or to another one, but end its own workers. It prints a JSON line for each command line.
"""

import argparse
import copy
import dataclasses
import enum
import io
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from cli.main import app

ROOT = Path(__file__).parents[2]
LIMIT_S = 2.5
"""After so long a command gets Ctrl-C."""
MEMORY = 8 << 30
"""Bytes that the process may map."""
INPUTS = [
    *sorted(ROOT.glob("infra/specs/*.yaml")),
    *sorted(ROOT.glob("infra/specs/*.json")),
    *sorted(ROOT.glob("infra/plans/*.yaml")),
    *sorted(ROOT.glob("infra/traffic/*.yaml")),
    *sorted(ROOT.glob("tests/recorded/*.jsonl.gz")),
    ROOT / "tests/infra/outputs.json",
]
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{second // 60:02}:{second % 60:02}.0,{20 + second % 7},{1 + second % 5}\n" for second in range(120)
)
LIKELY = {
    "spec": ["local.yaml", "simulated-h100.yaml", "simulated-autoscaling.yaml", "two-groups.yaml", "*.yaml"],
    "cost": ["simulated-h100.costs.json", "simulated-l40s.costs.json"],
    "trace": ["trace.csv", "day.yaml"],
    "worksheet": ["one-region.yaml", "three-regions.yaml"],
    "log": ["*.jsonl.gz"],
    "files": ["*.jsonl.gz"],
    "file": ["local.yaml", "day.yaml"],
    "outputs": ["outputs.json"],
}
"""The files that a parameter probably wants, by a part of its name."""
WRITTEN = {"out", "report", "json", "csv", "memo", "keep", "cache", "render", "into", "write", "publish"}
"""Parts of the names of parameters that say where something is written."""
TEXTS = [
    *("", " ", "-", "--", "x" * 5_000, "\N{LLAMA}\u202e\u0301", "\udcff\udcfe", "[/]", "[bold red]", "%s{}"),
    *("../../etc", "a\nb\tc\x1b[31m", "-1", "nan", "null", "{}", "[" * 100_000, "0"),
]
LIKELY_WORDS = {
    "model": ["demo", "llama-3.1-8b", "llama-3.1-8b-simulated"],
    "region": ["local", "here", "us-east-1", "eu"],
    "group": ["cheap", "fast", "own"],
    "class": ["interactive", "completion", "batch"],
    "span": ["30m", "1d", "90s"],
    "every": ["1h"],
    "window": ["1h"],
    "since": ["24h", "2026-11-23T00"],
    "until": ["1h", "2026-11-24T00"],
    "at": ["10m", "2026-11-21T12:03", "12:03:04"],
    "by": ["tenant", "model,hour"],
    "loads": ["0.5", "0.5,0.8"],
    "tokens": ["uniform:4:9", "20"],
    "against": ["live", "cell.sqlite"],
}
"""The words that a parameter probably wants, by a part of its name."""
WORDS = [
    *("demo", "us-east-1", "interactive", "model@group", "30m", "2026-11-23T07:00", "yesterday", "uniform:4:9", "1,2"),
    *("hf://org/model", "s3://bucket/prefix", "file:///nowhere", "L40S", "H1000", "loss", "0.5,0.9", "latest", "why"),
]
URLS = [
    *("http://127.0.0.1:1", "http://[::1]:1/", "http://127.0.0.1:99999", "http://[", "http://", "ftp://127.0.0.1:1"),
    *("127.0.0.1:1", "https://127.0.0.1:1/v1?a=b", "http://user:word@127.0.0.1:1", "http://127.0.0.1:1/\udcff", ":1"),
]
NUMBERS = [
    *("0", "-1", "1", "2", "3", "0.5", "7", "1e9", "1e308", "1e999", "nan", "-inf", "0x1F", "१", ""),
    *("9" * 30, "9" * 5_000),
]
RUN_DIR = [
    *("secret", "ray_token", "cell.sqlite", "shared_memory", "lock"),
    "logs/scaling-demo.000001.log",
    *("cost/2026-11-23T08.json", "cost/a.costs.json", "cost/notes"),
]
"""Files of a cluster's run directory."""
LEAVES: list[Any] = [
    *(None, "", -1, 0, 1, 10**30, 1e308, float("nan"), float("inf"), "x" * 5_000, [], {}, [[]], True, "\x00", "[/]"),
    *("098", "\N{LLAMA}", "\ud800", [1] * 50, {"a": 1}, "2026-11-23", "../x", -0.0, 1e-320, "H1000"),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a command. `kind`: of one value."""

    name: str
    option: str | None
    negation: str | None
    kind: Any
    required: bool
    several: bool
    least: float | None
    most: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One command, and the words that call it."""

    words: tuple[str, ...]
    parameters: tuple[Parameter, ...]


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[Command]:
    """All that the CLI declares."""
    found = get_command(app) if group is None else group
    yield Command(words, tuple(_parameter(one) for one in found.params))
    for name, one in getattr(found, "commands", {}).items():
        yield from commands(one, (*words, name))


def _words(name: str) -> list[str]:
    """What a parameter of this name probably wants."""
    return next((words for part, words in LIKELY_WORDS.items() if part in name), WORDS)


def _parameter(declared: Any) -> Parameter:
    kind = declared.type_descriptor.annotation if hasattr(declared, "type_descriptor") else str
    several = typing.get_origin(kind) is list
    return Parameter(
        declared.name,
        declared.opts[0] if declared.param_type_name == "option" else None,
        next(iter(declared.secondary_opts), None),
        typing.get_args(kind)[0] if several else kind,
        declared.required,
        several,
        getattr(declared, "min", None),
        getattr(declared, "max", None),
    )


class Draw:
    """One command line, and the files that it names, in a folder of its own."""

    def __init__(self, seed: int, number: int, folder: Path, known: list[Command]) -> None:
        self._random = random.Random(f"{seed}:{number}")
        self._folder = folder
        (folder / "trace.csv").write_text(TRACE)
        (folder / "is-a-file").write_text("")
        self.environment = {
            "RAYLANE_HOME": str(self._home()),
            "RAYLANE_SECRET": self._random.choice(["s" * 40, "", "\N{LLAMA}", "a\nb"]),
            "COLUMNS": self._random.choice(["80", "20", "200", "x"]),
        }
        self.full = self._random.random() < 0.06
        self.arguments = self._line(self._random.choices(known, [1 + len(one.parameters) for one in known])[0])

    def _line(self, command: Command) -> list[str]:
        given = [one for one in command.parameters if self._chance(0.97 if one.required else 0.25)]
        # Mostly one value is as it should not be, so that the others are read, too.
        share = self._random.choice((0.0, 1 / max(1, len(given)), 1 / max(1, len(given)), 0.5, 1.0))
        line = list(command.words)
        for one in given:
            if one.kind is bool:
                line.append(one.negation if one.negation and self._chance(0.5) else str(one.option))
                continue
            good = not self._chance(share)
            if good and one.kind is str and not one.required and _words(one.name) is WORDS:
                continue
            for _ in range(self._random.choice((1, 1, 2)) if one.several else 1):
                value = self._value(one, good)
                line += [value] if one.option is None else [one.option, value]
        if self._chance(0.03):
            line.append(self._random.choice(["--help", "--nothing", "--", "more", "-x", "--seed", ""]))
        return line

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _value(self, one: Parameter, good: bool) -> str:
        if one.kind is Path:
            written = WRITTEN & set(one.name.split("_"))
            return self._place(one.name, good) if written else self._input(one.name, good)
        if one.kind in (int, float):
            return self._number(one) if good else self._random.choice(NUMBERS)
        if isinstance(one.kind, type) and issubclass(one.kind, enum.Enum):
            return self._random.choice([str(each.value) for each in one.kind] if good else TEXTS)
        if typing.get_origin(one.kind) is typing.Literal:
            return self._random.choice(typing.get_args(one.kind) if good else TEXTS)
        if any(part in one.name for part in ("url", "endpoint", "address")):
            return self._random.choice(URLS)
        return self._random.choice(_words(one.name) if good else TEXTS)

    def _number(self, one: Parameter) -> str:
        least = 0 if one.least is None else one.least
        most = least + 5 if one.most is None else min(one.most, least + 5)
        drawn = self._random.choice([least, most, self._random.uniform(least, most)])
        return str(int(drawn) if one.kind is int else drawn)

    def _input(self, name: str, good: bool) -> str:
        wanted = next((files for part, files in LIKELY.items() if part in name), ["*"])
        wanted = wanted if self._chance(0.9) else ["*"]
        found = [path for path in [*INPUTS, self._folder / "trace.csv"] if path.match(self._random.choice(wanted))]
        path = self._random.choice(found or INPUTS)
        if "dir" in name and (homes := [one.parent for one in self._folder.glob("home/*/state.json")]):
            return str(homes[0])
        if good or self._chance(0.1):
            return str(path)
        if self._chance(0.5):
            return str(self._changed(path))
        return str(self._random.choice(self._hostile())())

    def _place(self, name: str, good: bool) -> str:
        """Where something may be written, or not."""
        folder = self._folder
        free = folder / f"{name}-{self._random.randrange(10)}"
        if good:
            return str(free)
        there = self._file("there", b"something else")
        no_places = [folder, *(folder / name for name in ("no/folder", "is-a-file/x", "n" * 300)), Path("/proc/x")]
        return str(self._random.choice([there, Path("/dev/full"), *no_places, Path("")]))

    def _changed(self, path: Path) -> Path:
        """The file with a part that is different."""
        if path.suffix in (".yaml", ".json") and self._chance(0.7):
            content = copy.deepcopy(_parsed(path))
            self._change_a_leaf(content)
            if path.suffix == ".json":
                return self._file(path.name, json.dumps(content).encode())
            return self._file(
                path.name, yaml.dump(content, Dumper=_Dumper, allow_unicode=True).encode("utf-8", "replace")
            )
        data = bytearray(path.read_bytes())
        for _ in range(self._random.choice((1, 1, 3, 100))):
            at = self._random.randrange(len(data))
            change = self._random.choice(("byte", "cut", "twice", "digit"))
            if change == "cut" and len(data) > 2:
                del data[at : at + self._random.randrange(1, len(data) // 2 + 1)]
                data = data or bytearray(b"\n")
            elif change == "twice":
                data[at:at] = data[at : at + 100]
            else:
                data[at] = (
                    self._random.randrange(256) if change == "byte" else ord(self._random.choice("0123456789-e."))
                )
        return self._file(path.name, bytes(data))

    def _change_a_leaf(self, content: Any) -> None:
        places: list[tuple[Any, Any]] = []

        def walk(part: Any) -> None:
            for key in list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
                places.append((part, key))
                walk(part[key])

        walk(content)
        for parent, key in self._random.sample(places, min(len(places), self._random.choice((1, 1, 1, 2, 4)))):
            what = self._random.random()
            if what < 0.75:
                parent[key] = copy.deepcopy(self._random.choice(LEAVES))
            elif isinstance(parent, dict) and what < 0.9:
                parent.pop(key, None)
            elif isinstance(parent, dict):
                parent[self._random.choice(TEXTS[:12])] = parent.get(key)

    def _hostile(self) -> list[Callable[[], Path]]:
        azure = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
        contents = [
            *(b"", b"\xff\xfe\x00binary\x80", "caf\xe9: [1]\n".encode("latin-1"), b"\xef\xbb\xbfa: 1\n"),
            *(b"null\n", b"3\n", b"- 1\n", b'{"a": NaN}', b"{" * 10 + b"}" * 10, b"a: &a [*a]\n"),
            *(b"a: !!python/object:os.system {}\n", b"? [1, 2]\n: 3\n", b"a: 1\na: 2\n", b"a: 1e999999999\n"),
            *(b"\x1f\x8b\x08not gzip", b"SQLite format 3\x00" + b"\x01" * 200, b"[" * 200_000, b'{"a":' * 100_000),
            *(b"a: " + b"[" * 20_000, b'{"a": ' + b"9" * 5_000 + b"}", b"a: " + b"9" * 5_000 + b"\n"),
            *(azure + b"1,2\n", azure + b"2023-11-16 18:15:46.0," + b"9" * 5_000 + b",1\n"),
            b"\n".join([b'{"timestamp": 0}'] * 3),
        ]
        suffixes = (".yaml", ".json", ".jsonl", ".csv", ".sqlite", ".jsonl.gz", "")
        name = "hostile" + self._random.choice(suffixes)
        made = [lambda content=content: self._file(name, content) for content in contents]  # type: ignore[misc]
        places = [self._folder, self._folder / "missing", self._folder / "is-a-file" / "x", Path("/dev/null"), Path("")]
        return [*made, *(lambda place=place: place for place in places)]  # type: ignore[misc]

    def _file(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path

    def _home(self) -> Path:
        """The run directories of clusters: none, or one whose files are not as `up` leaves them."""
        home = self._folder / "home"
        if self._chance(0.6):
            return self._random.choice([home, self._folder / "is-a-file", self._folder / "\udcff"])
        cell = home / self._random.choice(["cell", "[bold]", "\N{LLAMA}"])
        cell.mkdir(parents=True)
        state = {"name": cell.name, "pid": 1, "pid_started": 0, "url": "http://127.0.0.1:1", "ray_temp_dir": ""}
        state |= {"ready": True, "address": "127.0.0.1:1"}
        texts = [json.dumps(state), json.dumps(state), json.dumps(state), "[" * 100_000, "null", '{"name": 3}']
        (cell / "state.json").write_text(self._random.choice(texts))
        hostile: list[bytes | None] = [
            *(b"s" * 40, b"\xff\xfe", b"", b'["http://127.0.0.1:1"]', b"[" * 100_000, b'{"a": 1}\n' * 3, b"null", None)
        ]
        for name in RUN_DIR:
            content = self._random.choice(hostile)
            (cell / name).parent.mkdir(exist_ok=True)
            if content is None:
                (cell / name).mkdir()
            else:
                (cell / name).write_bytes(content)
        return home


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_files: dict[Path, Any] = {}


def _parsed(path: Path) -> Any:
    if path not in _files:
        _files[path] = yaml.safe_load(path.read_text())
    return _files[path]


def refuse_everything_else() -> None:
    """From now on this process connects to nothing, listens nowhere and starts no program. (Such a hook stays.)"""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and arguments[1] and str(arguments[1][0]) in ("127.0.0.1", "::1"):
            if int(arguments[1][1]) == 1:
                return
            raise ConnectionRefusedError(111, "Connection refused")
        if event in ("socket.connect", "socket.sendto", "socket.bind", "socket.listen"):
            raise PermissionError(1, "Operation not permitted")
        if event in ("socket.getaddrinfo", "socket.gethostbyname") and arguments[0] not in ("127.0.0.1", "::1", None):
            raise socket.gaierror(-2, "Name or service not known")
        if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"):
            raise PermissionError(1, "Operation not permitted")
        if event == "os.kill" and arguments[0] not in {child.pid for child in multiprocessing.active_children()}:
            raise ProcessLookupError(3, "No such process")

    sys.addaudithook(hook)


@dataclasses.dataclass(slots=True)
class Ending:
    """How one command line ended. `escaped`: a traceback, if there was one."""

    status: Any = None
    out: str = ""
    err: str = ""
    escaped: str = ""


@contextmanager
def _streams(full: bool) -> Iterator[Ending]:
    ending = Ending()
    out = io.TextIOWrapper(open("/dev/full", "wb") if full else io.BytesIO(), encoding="utf-8")  # noqa: SIM115
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    before, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), out, err
    try:
        yield ending
    finally:
        sys.stdout, sys.stderr = before
        for name, stream in (("out", out), ("err", err)):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
            if isinstance(stream.buffer, io.BytesIO):
                setattr(ending, name, stream.buffer.getvalue().decode("utf-8", "backslashreplace"))


def run(draw: Draw, folder: Path) -> Ending:
    """Runs it in this process."""
    environment, place, arguments = dict(os.environ), os.getcwd(), sys.argv
    with _streams(draw.full) as ending:
        threading.excepthook = lambda seen: _escaped(ending, seen.exc_value)  # type: ignore[assignment]
        sys.unraisablehook = lambda seen: _escaped(ending, seen.exc_value)
        os.environ.update({name: value for name, value in draw.environment.items() if "\x00" not in value})
        os.chdir(folder)
        sys.argv = ["raylane", *draw.arguments]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S, 5.0)
        try:
            app(draw.arguments)
        except SystemExit as error:
            ending.status = 0 if error.code is None else error.code
        except BaseException as error:
            _escaped(ending, error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.chdir(place)
            sys.argv = arguments
            os.environ.clear()
            os.environ.update(environment)
    return ending


def _escaped(ending: Ending, error: BaseException | None) -> None:
    ending.escaped += "".join(traceback.format_exception(error))


def into_full_disk(arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, whose output has no room."""
    command = [sys.executable, "-m", "cli.main", *arguments]
    with Path("/dev/full").open("wb") as full:
        return subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=os.environ | environment
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    scratch = Path(tempfile.mkdtemp(dir=chosen.keep))
    os.environ |= {"HOME": str(scratch), "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    known = list(commands())
    import_module("ray.serve")  # takes seconds; what a Ctrl-C leaves of it here, later commands would find
    refuse_everything_else()
    for number in range(chosen.count) if chosen.only is None else (chosen.only,):
        folder = scratch / str(number)
        folder.mkdir()
        draw = Draw(chosen.seed, number, folder, known)
        print(
            json.dumps({"number": number, "line": draw.arguments, "environment": draw.environment}),
            file=output,
            flush=True,
        )
        ending = run(draw, folder)
        print(json.dumps({"number": number, **dataclasses.asdict(ending)}), file=output, flush=True)


if __name__ == "__main__":
    main()
