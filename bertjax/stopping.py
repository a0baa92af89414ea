"""Stopping a long computation at a safe place: SIGTERM and Ctrl-C are noted, and obeyed where `check` is called.

Inside `graceful` the first signal only asks; the computation saves what it has and ends with `Interrupted`. A second
signal ends the process at once. Outside of it, and in other threads than the main one, signals do what they always do.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []
_active = False


class Interrupted(KeyboardInterrupt):
    """A signal asked the computation to stop; what was complete is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@contextlib.contextmanager
def graceful() -> Iterator[None]:
    """While this is open, a signal is kept for the next `check`. May be nested."""
    global _active
    if _active or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _note) for number in _SIGNALS}
    _active = True
    _received.clear()
    try:
        yield
        check()  # a signal after the last check still counts
    finally:
        _active = False
        _received.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def check() -> None:
    """Raises `Interrupted` if a signal has come."""
    if _received:
        raise Interrupted(_received[0])


def _note(number: int, frame: FrameType | None) -> None:
    if _received:
        os._exit(128 + number)
    _received.append(number)
    # Not through a progress bar: a handler may run while the bar holds its lock.
    text = f"\n{signal.Signals(number).name}: stops at the next safe place; a second signal stops at once\n"
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
