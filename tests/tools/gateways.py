"""A gateway process for tests."""

import http.client
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Gateway:
    """with Gateway(folder, {...client_config...}) as gateway: gateway.post("/completion/v2", {...})"""

    def __init__(self, folder, config, *arguments):
        self.config_path = pathlib.Path(folder) / "client_config.json"
        self.log_path = pathlib.Path(folder) / "gateway.log"
        self.access_path = pathlib.Path(folder) / "access.log"
        self.write(config)
        self._log = self.log_path.open("w")
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "tools" / "gateway", "--client_config_file_path", self.config_path,
             "--port", "0", "--access_log", self.access_path, *arguments],
            stdout=subprocess.PIPE, stderr=self._log, text=True)
        line = self.process.stdout.readline()
        if "listens on" not in line:
            self.__exit__()
            raise AssertionError(f"the gateway did not start: {self.log()}")
        self.port = int(line.rsplit(":", 1)[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._log.close()

    def write(self, config):
        self.config_path.write_text(config if isinstance(config, str) else json.dumps(config))

    def log(self):
        return self.log_path.read_text()

    def ask(self, method, path, body=None, timeout=30):
        """(status, parsed reply)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body if isinstance(body, (bytes, type(None)))
                               else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def post(self, path, body, timeout=30):
        return self.ask("POST", path, body, timeout)

    def get(self, path):
        return self.ask("GET", path)[1]

    def server(self, url):
        return next((s for s in self.get("/servers")["servers"] if s["url"] == url), None)
