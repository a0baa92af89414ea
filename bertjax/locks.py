"""One writer for each result: a lock that ends with the process that holds it, even when that is killed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from bertjax.errors import InUseError


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Holds the lock file `path` (its folder is made); InUseError if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InUseError(f"another process is working on {what}: wait for it, or choose another --name") from None
    try:
        yield
    finally:
        lock.release()
