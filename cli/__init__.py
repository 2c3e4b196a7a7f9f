"""How one asks: the `raylane` command."""
