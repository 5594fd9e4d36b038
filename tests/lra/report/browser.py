"""A headless Chromium through its driver's HTTP interface (W3C WebDriver), without a client
library."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PORT = re.compile(r"started successfully on port (\d+)")
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Space": " "}


def available() -> bool:
    return bool(shutil.which("chromedriver") and shutil.which("chromium"))


class Browser:
    """One window."""

    def __init__(self, address: str):
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000",
                     "--disable-dev-shm-usage"]  # fmt: skip
        wanted = {
            "goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self._base = address
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base = f"{address}/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, content, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """`return ...` in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> None:
        """Until `return ...` in the page is true, for at most ten seconds."""
        for _ in range(200):
            if self.run(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}")

    def find(self, css: str) -> str:
        return self._ask("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def texts(self, css: str) -> list[str]:
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", css
        )

    def click(self, css: str) -> None:
        self._ask("POST", f"/element/{self.find(css)}/click", {})

    def type(self, css: str, text: str) -> None:
        self._ask("POST", f"/element/{self.find(css)}/value", {"text": text})

    def press(self, *names: str) -> None:
        actions = [
            {"type": kind, "value": KEYS[name]} for name in names for kind in ("keyDown", "keyUp")
        ]
        keyboard = {"type": "key", "id": "keyboard", "actions": actions}
        self._ask("POST", "/actions", {"actions": [keyboard]})

    def emulate(self, command: str, **parameters: Any) -> None:
        """A command of the DevTools protocol."""
        self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def console(self) -> list[str]:
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Every address that was asked for since the last call."""
        entries = self._ask("POST", "/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            m["params"]["request"]["url"]
            for m in messages
            if m["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        self._ask("DELETE", "")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    command = ["chromedriver", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            port = next(found[1] for line in driver.stdout if (found := PORT.search(line)))
            window = Browser(f"http://127.0.0.1:{port}")
            try:
                yield window
            finally:
                with contextlib.suppress(AssertionError, OSError):
                    window.close()
        finally:
            driver.terminate()
