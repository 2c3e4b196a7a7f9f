"""Reads a worksheet and the spec that it names, and checks that they agree. Errors name key, value and what is
allowed."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from cluster.errors import InputError
from cluster.spec import ClusterSpec, SpecError, load_spec, parse_section
from planning.worksheet.sheet import Worksheet


class WorksheetError(InputError):
    """A worksheet that cannot be used. `problems` holds one line each."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source} is not a usable worksheet:\n  " + "\n  ".join(problems))
        self.source = source
        self.problems = problems


def load_worksheet(path: Path) -> tuple[Worksheet, ClusterSpec]:
    """The worksheet in a file, and its spec. Raises WorksheetError, and SpecError where the spec is at fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorksheetError(str(path), [f"cannot be read: {error}"]) from error
    sheet = parse_worksheet(text, str(path), path.resolve().parent)
    spec = load_spec(Path(sheet.spec))
    if problems := [*missing_files(sheet), *disagreements(sheet, spec)]:
        raise WorksheetError(str(path), problems)
    return sheet, spec


def missing_files(sheet: Worksheet) -> Iterator[str]:
    """Files and folders that a worksheet names and that are not there, a line each."""
    for number, stream in enumerate(sheet.demand):
        if stream.trace is not None and not Path(stream.trace.file).is_file():
            yield f"demand.{number}.trace.file = {stream.trace.file!r}: there is no such file; allowed: {_TRACES}"
    for number, candidate in enumerate(sheet.candidates):
        if candidate.costs is not None and not Path(candidate.costs).is_file():
            yield f"candidates.{number}.costs = {candidate.costs!r}: there is no such file; allowed: a cost file"
    for number, config in enumerate(sheet.model_configs):
        if not (Path(config.folder) / "config.json").is_file():
            yield (
                f"model_configs.{number}.folder = {config.folder!r}: holds no config.json; allowed: a folder with the "
                "model's"
            )


_TRACES = "a trace, a traffic file, or a gateway's recording"


def parse_worksheet(text: str, source: str = "worksheet", folder: Path | None = None) -> Worksheet:
    """The worksheet in a YAML text; relative paths start from `folder`. Raises WorksheetError."""
    try:
        return parse_section(Worksheet, text, source, folder)
    except SpecError as error:
        raise WorksheetError(source, error.problems) from error


def disagreements(sheet: Worksheet, spec: ClusterSpec) -> Iterator[str]:
    """Where a worksheet names what its spec does not have, a line each."""
    models, classes = [one.name for one in spec.models], [one.name for one in spec.classes]
    regions, tenants = [one.name for one in spec.regions], [one.name for one in spec.tenants]
    lanes = [one.name for one in spec.lanes]
    for number, stream in enumerate(sheet.demand):
        where = f"demand.{number}"
        yield from _known(f"{where}.model", [stream.model], models)
        yield from _known(f"{where}.class", [stream.traffic_class], classes)
        yield from _known(f"{where}.tenants", stream.tenants or (), tenants)
        yield from _known(f"{where}.rates.region", [rate.region for rate in stream.rates or ()], regions)
        yield from _known(f"{where}.residency", stream.residency or (), regions)
        if stream.trace is not None and stream.trace.region is not None:
            yield from _known(f"{where}.trace.region", [stream.trace.region], regions)
    for number, candidate in enumerate(sheet.candidates):
        where = f"candidates.{number}"
        yield from _known(f"{where}.model", [candidate.model], models)
        yield from _known(f"{where}.regions", candidate.regions or (), regions)
        yield from _known(f"{where}.lanes", candidate.lanes or (), lanes)
        yield from _gpu(f"{where}.gpu", candidate.gpu, spec)
    for key in ("gpu_prices", "quotas"):
        for number, one in enumerate(getattr(sheet, key)):
            yield from _known(f"{key}.{number}.region", [one.region], regions)
            yield from _gpu(f"{key}.{number}.gpu", one.gpu, spec)
    for key in ("elsewhere", "model_configs"):
        for number, one in enumerate(getattr(sheet, key)):
            yield from _known(f"{key}.{number}.model", [one.model], models)


def _known(key: str, names: Iterable[str], known: list[str]) -> Iterator[str]:
    for name in names:
        if name not in known:
            yield f"{key} = {name!r}: the spec has none of this name; allowed: {', '.join(known) or 'none'}"


def _gpu(key: str, name: str, spec: ClusterSpec) -> Iterator[str]:
    if name == "cpu":
        return
    try:
        spec.hardware.gpu_named(name)
    except ValueError as error:
        yield f"{key} = {name!r}: {error}"
