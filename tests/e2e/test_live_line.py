"""What `baton-supervisor` shows at a terminal, and its logs in JSON, beside a real pair."""

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import threading
import unittest

import cluster
from cluster import wait_until
from supervised import Supervised


class Terminal:
    """A pseudo terminal of some width; collects what is written to it."""

    def __init__(self, columns):
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.bytes = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(OSError):
            while data := os.read(self.ours, 65536):
                self.bytes += data

    def text(self):
        return self.bytes.decode(errors="replace")

    def close(self):
        os.close(self.theirs)
        os.close(self.ours)


class Shown(Supervised):
    """Its supervisor writes to a terminal, or to a pipe that this object reads."""

    def __init__(self, *words, columns=None, **options):
        super().__init__(**options)
        self.words = words
        self.terminal = Terminal(columns) if columns else None
        self.lines = []

    def supervise(self):
        port = next(iter(self.frontends.values()))
        command = [self.bin / "baton-supervisor", *self.words, "--config", self.config, "--frontend.port", str(port)]
        if self.terminal:
            self.supervisor = subprocess.Popen(command, stdout=self.terminal.theirs, stderr=subprocess.STDOUT)
            return
        self.supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=lambda: self.lines.extend(self.supervisor.stdout), daemon=True).start()


class LiveLineTest(unittest.TestCase):
    def test_a_terminal_gets_one_line_of_what_goes_on(self):
        with Shown(columns=60, worker={"step_delay_ms": 20}) as baton:
            shown = baton.terminal.text
            wait_until(lambda: "0 running, 0 waiting | 0 tokens/s | KV " in shown(), 10, "the line is there")
            streams = [baton.stream(f"Hello {i}", max_tokens=150, ignore_eos=True) for i in range(4)]
            wait_until(lambda: "4 running, 0 waiting" in shown(), 10, "it follows the load")
            baton.kill("decode0")
            wait_until(lambda: "decode0 (pid" in shown() and "was killed by signal 9" in shown(), 10, "a death is shown")
            baton.wait_ready()
            for stream in streams:
                stream.finish()
            self.assertNotIn("POST /v1/completions", shown(), "requests are in the log alone")
            log = (baton.folder / "run" / "logs" / "frontend0.log").read_text()
            self.assertIn("/v1/completions", log)
            for drawn in shown().split("\r\x1b[K")[1:]:
                live = drawn.split("\n")[-1]
                self.assertLess(len(live), 60, "never a second row")
            baton.kill("supervisor")
            baton.supervise()
            wait_until(lambda: "adopted decode0" in shown(), 10, "the next supervisor goes on there")
        baton.terminal.close()

    def test_lines_are_shown_where_they_are_asked_for(self):
        with Shown("--output", "lines", columns=80) as baton:
            baton.stream("Hello", max_tokens=5).finish()
            wait_until(lambda: "/v1/completions" in baton.terminal.text(), 10, "the request is shown")
            self.assertNotIn("\x1b[K", baton.terminal.text())
        baton.terminal.close()

    def test_json_is_one_object_a_line_from_every_process(self):
        with Shown(top={"log_format": "json"}) as baton:
            baton.stream("Hello", max_tokens=5).finish()
            baton.kill("decode0")
            baton.wait_ready()
        wait_until(lambda: any('"stopped"' in line for line in baton.lines), 10, "the last line came")
        lines = [json.loads(line) for line in baton.lines]
        self.assertEqual({"baton", "memory", "scheduler", "prefill0", "decode0", "frontend0"},
                         {line["process"] for line in lines})
        for line in lines:
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d$")
            self.assertIn(line.get("level", "info"), {"info", "warning", "error"})
        self.assertTrue(any("/v1/completions" in line["message"] for line in lines))
        self.assertTrue(any("killed by signal 9" in line["message"] for line in lines))


if __name__ == "__main__":
    unittest.main(verbosity=2)
