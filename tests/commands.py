"""Commands of `raylane`, run in the tests' own process."""

from typer.testing import CliRunner, Result

from cli.main import app


def ran(*arguments: object, code: int | None = 0, columns: int = 200) -> Result:
    """A command that ended with that status (None: with any) and no other exception, on a terminal of so many
    columns."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert code is None or result.exit_code == code, result.output
    return result
