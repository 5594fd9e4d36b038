"""A headless Chromium through its driver's HTTP interface (W3C WebDriver)."""

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

ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--window-size=1300,1000",
    "--disable-dev-shm-usage",
]
KEYS = {
    "Tab": "\ue004",
    "Enter": "\ue007",
    "Escape": "\ue00c",
    "Down": "\ue015",
    "Left": "\ue012",
    "Right": "\ue014",
}


def available() -> bool:
    return bool(shutil.which("chromedriver") and shutil.which("chromium"))


class Browser:
    """One window."""

    def __init__(self, address: str):
        options = {"args": ARGUMENTS, "binary": shutil.which("chromium")}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": logs}
        self._base = address
        session = self.ask("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base = f"{address}/session/{session['sessionId']}"

    def ask(self, path: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, content, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, url: str) -> None:
        self.ask("/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """`return ...` in the page."""
        return self.ask("/execute/sync", {"script": script, "args": arguments})

    def wait(self, script: str) -> None:
        """Until `return ...` in the page is true, for at most ten seconds."""
        end = time.monotonic() + 10
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def texts(self, css: str) -> list[str]:
        elements = "return [...document.querySelectorAll(arguments[0])]"
        return self.run(f"{elements}.map(e => e.textContent)", css)

    def _element(self, css: str) -> str:
        (place,) = self.ask("/element", {"using": "css selector", "value": css}).values()
        return f"/element/{place}"

    def click(self, css: str) -> None:
        self.ask(f"{self._element(css)}/click", {})

    def type(self, css: str, text: str) -> None:
        self.ask(f"{self._element(css)}/value", {"text": text})

    def press(self, *names: str) -> None:
        keys = [{"type": kind, "value": KEYS[n]} for n in names for kind in ("keyDown", "keyUp")]
        self.ask("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def emulate(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.ask("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Every address that was asked for since the last call."""
        entries = self.ask("/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            m["params"]["request"]["url"]
            for m in messages
            if m["method"] == "Network.requestWillBeSent"
        ]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    command = ["chromedriver", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            lines = (
                re.search(r"started successfully on port (\d+)", x) for x in driver.stdout or ()
            )
            window = Browser(f"http://127.0.0.1:{next(filter(None, lines))[1]}")
            try:
                yield window
            finally:
                window.ask("", None, "DELETE")
        finally:
            driver.terminate()
