"""The one error type that means: the input is wrong, and the message says what to do about it."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any


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


def brief(value: Any) -> str:
    """A value of a JSON file for a message, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:20]}...{text[-1]}"


@contextlib.contextmanager
def option_names(names: Mapping[str, str], elsewhere: str) -> Iterator[None]:
    """Errors name options as this command calls them.

    Args:
      names: option as it is called in training ("data.text") -> its name here ("text").
      elsewhere: where the options are that this command does not have, for example a file's name.
    """

    def here(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or ""
        return f"--{names[name]}{value}" if name in names else f"{name}{value} of {elsewhere}"

    try:
        yield
    except InputError as error:
        raise InputError(re.sub(r"--((?:model|data|optim|train)\.\w+)(=[\w.-]+)?", here, str(error))) from None
