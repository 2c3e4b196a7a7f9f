"""`raylane key`: makes an API key for a tenant. The key is shown once; the spec gets its digest."""

import secrets

import typer

from cli.console import errors
from deployments.gateway.tenants import digest_of

_BYTES = 32


def key() -> None:
    """Make an API key: the key for the tenant (shown this once), and the digest for `tenants.keys` in the spec."""
    made = "rl-" + secrets.token_urlsafe(_BYTES)
    errors.print("The first line is the key: give it to the tenant, it is kept nowhere. The second goes into the spec, under tenants.keys.")
    typer.echo(made)
    typer.echo(digest_of(made))
