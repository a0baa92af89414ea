"""Progress bars: a live bar on a terminal, a line now and then in a log file."""

import sys
from typing import Any

from tqdm import tqdm


def bar(total: int | None, what: str, unit: str, initial: int = 0) -> Any:
    """A progress bar over `total` items (None: unknown) that shows the time left."""
    live = sys.stderr.isatty()
    return tqdm(
        total=total,
        desc=what,
        unit=unit,
        initial=initial,
        dynamic_ncols=live,
        mininterval=0.2 if live else 15,
        miniters=None if live else 1,
        file=sys.stderr,
    )


def say(*lines: str) -> None:
    """Prints lines without breaking a bar."""
    for line in lines:
        tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()
