"""Headless Chromium over its DevTools pipe: opens a file, runs scripts in it, presses keys, takes pictures."""

import base64
import contextlib
import io
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No connection at all: what the page would load from elsewhere fails, and is seen in `requests`.
OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--enable-unsafe-swiftshader",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--force-color-profile=srgb",
)


def find() -> str | None:
    """The browser's program, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. `problems` are console messages, exceptions and log entries; `requests` the addresses asked for."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a DevTools method and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path: Path, width: int, height: int = 900, phone: bool = False) -> None:
        """Opens a page of this width in CSS pixels and waits until its figures are drawn."""
        self.problems.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of a script, promises awaited."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = 60.0) -> None:
        """Waits until a script gives true."""
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"not within {seconds} s: {condition}; {self.problems}"
            time.sleep(0.05)

    def press(self, key: str, code: int) -> None:
        """Presses a key."""
        text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, box: dict[str, float] | None = None) -> np.ndarray:
        """The whole page, or the box {x, y, width, height} of it, as [rows, columns, 3] numbers from 0 to 1."""
        clip = {"clip": box | {"scale": 1}} if box else {}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **clip)["data"]
        return matplotlib.image.imread(io.BytesIO(base64.b64decode(data)))[..., :3]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._receive, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console {params['type']}: {[arg.get('value') for arg in params['args']]}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {params['exceptionDetails']}")
        elif method == "Log.entryAdded":
            self.problems.append(f"log {params['entry']['level']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextlib.contextmanager
def browser(program: str) -> Iterator[Browser]:
    """A browser with a profile of its own; ended with all its processes' pipe."""
    to_browser, from_browser = os.pipe(), os.pipe()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *OPTIONS, *sandbox, f"--user-data-dir={profile}", "about:blank"]
        # The browser reads from descriptor 3 and writes to descriptor 4.
        shell = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(to_browser[0], from_browser[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": profile},
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Browser(to_browser[1], from_browser[0])
        finally:
            os.close(to_browser[1])
            os.close(from_browser[0])
            try:
                process.wait(20)  # the closed pipe ends it
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
