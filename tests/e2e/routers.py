"""vllm-router and sglang-router as processes, unchanged, from the packages that requirements-routers.txt pins.

The packages are installed once; where they cannot be, the test that imports this is skipped.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import client_packages
from cluster import free_port, wait_until

client_packages.install("routers")
PACKAGES = client_packages.BUILD / "routers-client"
KINDS = ("vllm", "sglang")

# What the routers' own command lines do, without the packages that only their other modes need.
START = """
import importlib, json, sys
kind, options = sys.argv[1], json.loads(sys.argv[2])
arguments = importlib.import_module(kind + "_router.router_args").RouterArgs(**options)
importlib.import_module(kind + "_router.router").Router.from_args(arguments).start()
"""
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "What is Baton?"}], "max_tokens": 6,
        "temperature": 0, "seed": 1}


class Through(contextlib.AbstractContextManager):
    """A router of one kind in front of some addresses. `options` are fields of its RouterArgs: the command line's
    --retry-max-retries is retry_max_retries."""

    def __init__(self, kind, urls, **options):
        self.kind = kind
        self.urls = urls
        self.port = free_port()
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        options = {"host": "127.0.0.1", "port": self.port, "worker_urls": urls, "policy": "round_robin",
                   "prometheus_host": "127.0.0.1", "prometheus_port": free_port(), **options}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, kind, json.dumps(options)], stdout=self.log, stderr=self.log,
            env={**os.environ, "PYTHONPATH": str(PACKAGES)}, cwd=tempfile.gettempdir())

    def __exit__(self, error, *_):
        self.process.kill()
        self.process.wait()
        if error is not None:
            print(self.log_text()[-4000:])
        self.log.close()

    def log_text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def ask(self, path, body=None, headers=None):
        """(status, text)"""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def loads(self):
        """What each server says that it has to do."""
        status, text = self.ask("/get_loads")
        return [worker["load"] for worker in json.loads(text)["workers"]] if status == 200 else []

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"{self.kind}-router has exited with {self.process.returncode}")
            return len(self.loads()) == len(self.urls) and self.ask("/v1/chat/completions", CHAT)[0] == 200
        wait_until(ready, 60, f"{self.kind}-router serves")
