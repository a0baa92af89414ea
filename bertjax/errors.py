"""The one error type that means: the input is wrong, and the message says what to do about it."""


class InputError(ValueError):
    """Bad input from the user: what was given, what was expected and where.

    The command line prints the message alone, without a traceback, and exits with code 2.
    """


class DivergedError(InputError):
    """A training whose loss is no longer a finite number."""


class InUseError(InputError):
    """Another process is working on the same thing."""


def first_line(error: BaseException) -> str:
    """The first non-empty line of an exception's message, for use inside a one-line report."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
