"""The launcher as a newcomer meets it: ./baton serve, a chat, a kill, Ctrl-C, and the bad cases."""

import contextlib
import glob
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

import folders

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BATON = ROOT / "baton"
QUESTION = {"messages": [{"role": "user", "content": "你是谁"}], "temperature": 0,
            "max_tokens": 120}


def run(*args, env=None):
    return subprocess.run([BATON, *args], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})})


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def alive(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


class Served:
    """A running ./baton serve."""

    def __init__(self, folder, *args):
        self.run_dir = pathlib.Path(folder)
        self.port = free_port()
        self.log = open(self.run_dir / "serve.log", "wb")
        self.process = subprocess.Popen(
            [BATON, "serve", "--port", str(self.port), "--run_dir", folder, *args],
            stdout=self.log, stderr=self.log, start_new_session=True)

    def text(self):
        return (self.run_dir / "serve.log").read_text(errors="replace")

    def wait_ready(self, seconds=120):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended: {self.text()}")
            return "Baton is ready" in self.text()
        wait_until(ready, seconds, "ready")

    def pid(self, name, other_than=None):
        def read():
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = int((self.run_dir / f"{name}.pid").read_text())
                return pid if pid != other_than and alive(pid) else None
            return None
        return wait_until(read, 20, f"{name} runs")

    def open_stream(self):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps({**QUESTION, "stream": True}).encode(),
            {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=60)

    def end(self):
        if self.process.poll() is None:  # it takes its pools with it, which a kill would leave behind
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.log.close()


def events(stream):
    """The texts of an SSE stream as they come; raises if it breaks off before [DONE]."""
    for line in stream:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise AssertionError(event)
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                yield text
    raise AssertionError("the stream ended without [DONE]")


class ServeTest(unittest.TestCase):
    def serve(self, *args):
        served = Served(folders.temporary(self, "baton-launcher-"), *args)
        self.addCleanup(served.end)
        served.wait_ready()
        return served

    def test_the_newcomers_story(self):
        began = time.monotonic()
        s = self.serve()
        self.assertLess(time.monotonic() - began, 30, "a second start takes seconds")

        self.assertIn("demo/model by prefill0 (prefill on cpu), decode0 (decode on cpu)", s.text())
        for what, chosen, option in (
                ("context", r"32768 tokens", "--max_context"),
                ("tokenizer", r"tokenizer.model", "--frontend.tokenizer"),
                ("chat template", r"chat_format.json", "--frontend.chat_template"),
                ("decode0", r"decode on cpu, \d+ threads?", "--device, --worker.threads"),
                ("decode0 weights", r"bf16, 0\.\d+ GiB", "--worker.dtype"),
                ("decode0 KV pool", r"f32, 0\.\d+ GiB: \d+ tokens; [\d.]+ GiB were free",
                 "--worker.pool_mib")):
            self.assertRegex(s.text(), rf"(?m)^  {what} +{chosen} +{option}")
        command = re.search(r"^  (curl (?:.*\\\n)*.*)$", s.text(), re.MULTILINE).group(1)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        self.assertIn("data: [DONE]", done.stdout, done)

        whole = "".join(events(s.open_stream()))
        self.assertGreater(len(whole), 5)
        for name in ("decode0", "prefill0", "scheduler"):
            with self.subTest(killed=name):
                stream = events(s.open_stream())
                text = next(stream)
                pid = s.pid(name)
                os.kill(pid, signal.SIGKILL)
                self.assertEqual(whole, text + "".join(stream), s.text())
                s.pid(name, other_than=pid)

        pids = [s.pid(name) for name in ("frontend0", "scheduler", "prefill0", "decode0")]
        s.process.send_signal(signal.SIGINT)
        self.assertEqual(0, s.process.wait(15), s.text())
        self.assertEqual([], [pid for pid in pids if alive(pid)])

    def test_a_frozen_worker_is_replaced(self):
        s = self.serve("--frozen-after", "2")
        whole = "".join(events(s.open_stream()))
        stream = events(s.open_stream())
        text = next(stream)
        pid = s.pid("decode0")
        os.kill(pid, signal.SIGSTOP)
        self.assertEqual(whole, text + "".join(stream), s.text())
        pids = [pid, s.pid("decode0", other_than=pid), s.pid("prefill0")]
        self.assertIn("decode0 is frozen", s.text())
        s.process.send_signal(signal.SIGINT)  # while decode0 still starts
        self.assertEqual(0, s.process.wait(20), s.text())
        self.assertEqual([], [pool for pid in pids for pool in glob.glob(f"/dev/shm/baton-*-{pid}-*")])

    def test_a_taken_port_is_named(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            done = run("serve", "--port", str(port))
        self.assertEqual(1, done.returncode)
        self.assertIn(f"port {port} is taken", done.stderr)

    def test_a_wrong_option_is_named(self):
        done = run("serve", "--no_such_key", "1")
        self.assertEqual(1, done.returncode)
        self.assertIn("no_such_key", done.stderr)

    def test_a_missing_configuration_is_named(self):
        done = run("serve", "--config", "/nonexistent.yaml")
        self.assertEqual(1, done.returncode)
        self.assertIn("/nonexistent.yaml", done.stderr)

    def test_a_folder_without_a_model_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("serve", "--model", folder)
        self.assertEqual(1, done.returncode)
        self.assertIn("has no config.json", done.stderr)


class CommandsTest(unittest.TestCase):
    def test_help_and_version(self):
        self.assertIn("./baton COMMAND", run("help").stdout)
        self.assertRegex(run("--version").stdout, r"^baton \d+\.\d+\.\d+$")

    def test_an_unknown_command_is_refused(self):
        done = run("sevre")
        self.assertEqual(1, done.returncode)
        self.assertIn("unknown command 'sevre'", done.stderr)

    def test_doctor_finds_a_taken_port(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            done = run("doctor", str(port))
        self.assertEqual(1, done.returncode)
        self.assertIn(f"missing  port {port}: another program listens on it", done.stdout)
        self.assertNotIn(f"missing  port {port}", run("doctor", str(port)).stdout)

    def test_doctor_names_missing_and_old_packages(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder) / "dpkg-query"
            fake.write_text('#!/bin/sh\ncase $4 in\n'
                            'mold) exit 1 ;;\n'
                            'cmake) printf "installed 3.18.4-2" ;;\n'
                            'libspdlog-dev) printf "installed 1:1.10.0+ds-0.4" ;;\n'
                            '*) printf "installed 9:99999999" ;;\nesac\n')
            fake.chmod(0o755)
            done = run("doctor", env={"PATH": f"{folder}:{os.environ['PATH']}"})
        self.assertEqual(1, done.returncode)
        self.assertIn("missing  mold, at least 1.10: not installed", done.stdout)
        self.assertIn("apt-get install --no-install-recommends mold", done.stdout)
        self.assertIn("missing  cmake, at least 3.25: version 3.18.4-2 is too old", done.stdout)
        self.assertIn("ok       libspdlog-dev, at least 1.10.0", done.stdout)

    def test_it_is_plain_sh(self):
        for shell in ("sh", "bash"):
            self.assertEqual(0, subprocess.run([shell, "-n", BATON]).returncode)


if __name__ == "__main__":
    unittest.main(verbosity=2)
