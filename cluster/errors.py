"""What is wrong with what somebody gave: a spec, a file, an option."""


class InputError(ValueError):
    """It cannot be used; the message names it, and says what is allowed. A command that it reaches ends with exit code
    2 and the message. `hint`: a command that may help."""

    hint: str | None = None

    @property
    def report(self) -> str:
        """What the command says."""
        return str(self)
