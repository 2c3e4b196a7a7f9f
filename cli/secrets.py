"""`raylane secrets`: how a node of a deployed cell gets its secrets. Its start scripts run it (`cluster/launch`)."""

from pathlib import Path
from typing import Annotated

import typer

from cli.console import console, fail
from cluster.secrets import AwsSecret, SecretsFolder, SecretsUnavailable

secrets = typer.Typer(help="Fetch a deployed cell's secrets to a node.", no_args_is_help=True)


@secrets.callback()
def _group() -> None:
    """With a callback Typer makes a group even of one command."""


@secrets.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The secret's name in AWS Secrets Manager.")],
    aws_region: Annotated[str, typer.Option(help="The AWS region of the secret.")],
    into: Annotated[Path, typer.Option(help="The folder to write to; its files are for their owner alone.")],
) -> None:
    """Write the secrets from AWS Secrets Manager to files. Credentials are those of boto3's own chain."""
    try:
        content = AwsSecret(name, aws_region).read()
        if content is None:
            fail(f"AWS Secrets Manager has no secret {name!r} in {aws_region}", hint="raylane deploy SPEC")
        SecretsFolder(into).write(content)
    except SecretsUnavailable as error:
        fail(str(error))
    console.print(f"secrets of {name!r} are in {into}")
