"""A headless Chromium to open pages in, driven over its debugging pipe: no package beyond the browser is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

HOW_TO_GET_IT = (
    "chromium is not installed, and the report is tested in it: apt-get update && apt-get install -y chromium"
)
PATIENCE_S = 60
_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]  # fmt: skip


class Chromium:
    """One tab. `asked` are the addresses that its page asked for, `said` what it complained of, in order."""

    def __init__(self, home: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            raise AssertionError(HOW_TO_GET_IT)
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        self._log = (home / "chromium.log").open("wb")
        # The browser reads commands from descriptor 3 and answers on 4, which a shell can set and Popen cannot.
        wiring = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", wiring, "bash", program, *_FLAGS, f"--user-data-dir={home / 'profile'}", "about:blank"],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._waiting = b""
        self._number = 0
        self._session: str | None = None
        self.asked: list[str] = []
        self.said: list[str] = []
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)  # without a window, none would have the focus

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        if self._process.poll() is None:
            self.send("Browser.close")
        self._process.wait(PATIENCE_S)
        os.close(self._commands)
        os.close(self._answers)
        self._log.close()

    def open(
        self, page: Path, *, fragment: str = "", width: int = 1400, height: int = 900, theme: str = "light"
    ) -> None:
        """The page, loaded, its charts drawn, in a window of this size and a system of this theme."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.theme(theme)
        self.send("Page.navigate", url="about:blank")  # or an address that differs in its fragment would load nothing
        self.asked, self.said = [], []
        self.send("Page.navigate", url=page.resolve().as_uri() + (f"#{fragment}" if fragment else ""))
        self.wait_for("document.readyState === 'complete' && document.body.dataset.charts")

    def theme(self, theme: str) -> None:
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def allow(self, permission: str) -> None:
        """What a person would be asked to allow."""
        self.send("Browser.grantPermissions", permissions=[permission])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > until:
                raise AssertionError(f"after {PATIENCE_S} s, still not: {condition}; the page said {self.said}")
            time.sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, as a person presses it."""
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def move_to(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path) -> Path:
        """The whole page, as long as it is."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE_S)
            part = os.read(self._answers, 1 << 20) if ready else b""
            if not part:
                raise AssertionError(f"chromium does not answer: see {self._log.name}")
            self._waiting += part
        first, self._waiting = self._waiting.split(b"\0", 1)
        return dict(json.loads(first))

    def _note(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(details["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(details["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.said.append(str(details["args"]))
        elif event.get("method") == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.said.append(details["entry"]["text"])
