"""A headless Chromium, driven through its DevTools pipe: nothing but Python is needed.

    with Browser() as browser:
        page = browser.page(width=1280, height=800)
        page.open("http://127.0.0.1:8000/console")
        page.wait("document.body.dataset.looks > 1")
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = float(os.environ.get("BATON_TEST_PATIENCE", "1"))


def program():
    """None where there is no such browser."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="baton-browser-")
        self.log = open(pathlib.Path(self.folder) / "log", "wb")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def descriptors():
            # The browser reads commands from 3 and writes answers to 4.
            spare_in, spare_out = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(spare_in, 3)
            os.dup2(spare_out, 4)

        self.process = subprocess.Popen(
            [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--disable-component-update",
             "--hide-scrollbars", "--force-color-profile=srgb",
             f"--user-data-dir={self.folder}/profile", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=descriptors, close_fds=False)
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = ours_in, ours_out
        self.data, self.number, self.pages = b"", 0, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.input)
        os.close(self.output)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _message(self, until):
        while b"\0" not in self.data:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.input], [], [], left)[0]:
                return None
            piece = os.read(self.input, 1 << 20)
            if not piece:
                raise AssertionError("the browser has ended")
            self.data += piece
        one, _, self.data = self.data.partition(b"\0")
        return json.loads(one)

    def call(self, method, session=None, seconds=30, **parameters):
        self.number += 1
        number = self.number
        request = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.output, data):]
        until = time.monotonic() + seconds * PATIENCE
        while True:
            message = self._message(until)
            if message is None:
                raise AssertionError(f"the browser did not answer {method}")
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self._event(message)

    def listen(self, seconds):
        """Takes in what pages tell, for so long."""
        until = time.monotonic() + seconds
        while (message := self._message(until)) is not None:
            self._event(message)

    def _event(self, message):
        page = self.pages.get(message.get("sessionId"))
        if page is not None:
            page.event(message["method"], message.get("params", {}))

    def page(self, width=1280, height=800, dark=False, still=False, scale=1):
        return Page(self, width, height, dark, still, scale)


class Page:
    def __init__(self, browser, width, height, dark, still, scale):
        self.browser, self.complaints, self.asked = browser, [], []
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Runtime", "Page", "Log", "Network", "Accessibility", "DOM"):
            self.call(f"{domain}.enable")
        self.size(width, height, scale)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}])

    def call(self, method, **parameters):
        return self.browser.call(method, session=self.session, **parameters)

    def event(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"])[:600])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.asked.append((parameters["request"]["method"], parameters["request"]["url"]))

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def tell(self, expression):
        """What the page makes of it."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {json.dumps(result['exceptionDetails'])[:600]}")
        return result["result"].get("value")

    def wait(self, expression, seconds=20):
        """Until it is true; returns it, an element as True."""
        end = time.monotonic() + seconds * PATIENCE
        while not (value := self.tell(f"(value => value instanceof Node ? true : value)({expression})")):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds * PATIENCE} s: {expression}")
            self.browser.listen(0.05)
        return value

    def press(self, key, **more):
        codes = {"Tab": 9, "Enter": 13, " ": 32, "Escape": 27}
        text = {"Enter": "\r", " ": " "}.get(key)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code={" ": "Space"}.get(key, key),
                      windowsVirtualKeyCode=codes[key], **({"text": text} if text and kind == "keyDown" else {}), **more)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def controls(self):
        """(role, name) of everything that can be used, as assistive programs see it."""
        wanted = {"button", "textbox", "spinbutton", "link", "checkbox", "combobox"}
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes
                if not node.get("ignored") and node.get("role", {}).get("value") in wanted]

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))
