"""`raylane deploy`: renders a spec for each region, shows what changes, and applies it."""

from cli.deploy.command import deploy
