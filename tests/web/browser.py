"""A real Chromium without a window, driven by its own protocol (https://chromedevtools.github.io/devtools-protocol/).

with Browser(folder) as browser:
    browser.open(url)
    assert browser.run("document.title") == "Fleet · Sentinel"
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from tests.waits import until

DEADLINE_S = 120.0
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32}


def chromium() -> str:
    """Its path; `scripts/setup.sh test` installs it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError("there is no chromium: run scripts/setup.sh test")


class Browser:
    """One page. `problems`: exceptions of scripts, and what the page's policy refused."""

    def __init__(self, folder: Path) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._number = 0
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> "Browser":
        profile = self._folder / "chromium"
        profile.mkdir(parents=True, exist_ok=True)
        words = [
            "--headless=new",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "--no-first-run",
        ]
        words += [
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
        ]
        if os.geteuid() == 0:  # as root it has no sandbox
            words.append("--no-sandbox")
        self._errors = open(self._folder / "chromium.log", "wb")
        self._process = subprocess.Popen(
            [chromium(), *words, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )
        try:
            port = self._wait(lambda: self._port(profile))
            self._loop.run_until_complete(self._connect(port))
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        async def end() -> None:
            if hasattr(self, "_socket"):
                await self._socket.close()
                await self._session.close()

        self._loop.run_until_complete(end())
        self._process.terminate()  # its children write to its folder until it has ended them
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()
        self._loop.close()

    def _port(self, profile: Path) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((profile / "DevToolsActivePort").read_text().split()[0])
        if self._process.poll() is not None:
            raise RuntimeError((self._folder / "chromium.log").read_text(errors="replace")[-2000:])
        return 0

    async def _connect(self, port: int) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [one for one in await answer.json() if one["type"] == "page"]
        self._socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)

    # ------------------------------------------------------------ what a person does

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise AssertionError(json.dumps(told["exceptionDetails"]))
        return told["result"].get("value")

    def until(self, script: str) -> Any:
        """Waits until the expression is true, and gives its value."""
        with contextlib.suppress(AssertionError):
            return self._wait(lambda: self._tried(script))
        text = self._tried("document.body.innerText.slice(0, 4000)")
        raise AssertionError(f"it never came: {script}\n{self.problems}\n{text}")

    def _tried(self, script: str) -> Any:
        try:
            return self.run(script)
        except AssertionError:
            return None  # the page is being loaded

    def click(self, selector: str) -> None:
        self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str, *, shift: bool = False) -> None:
        more = {"modifiers": 8} if shift else {}
        text = {"text": {"Enter": "\r", "Space": " "}[key]} if key in ("Enter", "Space") else {}
        base = {
            "key": " " if key == "Space" else key,
            "code": key,
            "windowsVirtualKeyCode": KEYS[key],
            **more,
        }
        self.call("Input.dispatchKeyEvent", type="keyDown", **base, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **base)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def dark(self, dark: bool) -> None:
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def picture(self, kind: str = "png", quality: int = 40) -> bytes:
        """What is seen. `quality`: of a lossy `kind` (webp)."""
        more = {} if kind == "png" else {"quality": quality}
        return base64.b64decode(self.call("Page.captureScreenshot", format=kind, **more)["data"])

    # ------------------------------------------------------------ the protocol

    def call(self, method: str, **parameters: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, parameters), DEADLINE_S))

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            told = await self._socket.receive_json()
            if told.get("id") == self._number:
                if "error" in told:
                    raise AssertionError(f"{method}: {told['error']}")
                return told["result"]
            self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["params"]["exceptionDetails"]))
        elif told.get("method") == "Log.entryAdded":
            entry = told["params"]["entry"]
            if entry.get("source") == "security" or "Content Security Policy" in entry.get("text", ""):
                self.problems.append(entry["text"])

    def _wait(self, holds: Callable[[], Any]) -> Any:
        return until(holds, "the page did not come so far", DEADLINE_S)
