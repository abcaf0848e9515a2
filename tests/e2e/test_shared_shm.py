"""Two Batons of one path that share /dev/shm, each in a mount and PID namespace of its own, as containers with the
host's IPC are. Neither removes the other's pools, and one that is started again removes its own."""

import http.client
import json
import os
import pathlib
import subprocess
import sys
import unittest

import cluster
import folders
from cluster import free_port, wait_until

SHM = pathlib.Path("/dev/shm")
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def pools():
    return {path.name for path in SHM.glob(f"baton-{os.geteuid()}-*") if not path.name.endswith(".lock")}


def exchange_json(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class SharedShm(unittest.TestCase):
    def setUp(self):
        if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0:
            self.skipTest("unshare: namespaces are not permitted here")
        self.folder = pathlib.Path(folders.temporary(self, "baton-shm-"))
        (self.folder / "private").mkdir()
        self.config = self.folder / "config.yaml"
        self.config.write_text(json.dumps({
            "run_dir": str(self.folder / "private" / "run"), "model": str(cluster.DEMO_MODEL), "model_name": "demo",
            "worker": {"fake": True, "pool_mib": 16},
            "workers": [{"name": "prefill0", "role": "prefill"}, {"name": "decode0", "role": "decode"}]}))
        self.before = pools()
        self.addCleanup(lambda: [(SHM / name).unlink(missing_ok=True) for name in pools() - self.before])

    def start(self):
        """(process, port, the segments that are new)."""
        port, known = free_port(), pools()
        script = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
        log = self.enterContext(open(self.folder / f"{port}.log", "wb"))
        process = subprocess.Popen(
            [*UNSHARE, "sh", "-c", script, "-", self.folder / "private", cluster.BIN / "baton-supervisor",
             "--config", self.config, "--frontend.port", str(port), "--output", "lines"], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def ready():
            try:
                status, _ = exchange_json(port, "GET", "/health")
            except OSError:
                return False
            fresh = pools() - known
            return status == 200 and all(any(f"-{name}-" in pool for pool in fresh) for name in ("prefill0", "decode0"))

        try:
            wait_until(ready, 60, f"a Baton on port {port}")
        except AssertionError:
            print((self.folder / f"{port}.log").read_text())
            raise
        return process, port, pools() - known

    def complete(self, port):
        status, reply = exchange_json(port, "POST", "/v1/completions", {"model": "demo", "prompt": "Hello", "max_tokens": 4})
        self.assertEqual(200, status, reply)

    def test_each_leaves_the_others_pools_alone(self):
        first, first_port, of_first = self.start()
        second, second_port, of_second = self.start()
        self.assertEqual(set(), of_first - pools(), "removed by the second start")
        self.complete(first_port)
        self.complete(second_port)

        first.kill()
        first.wait()
        self.assertEqual(set(), of_first - pools(), "a kill leaves them behind")
        _, third_port, _ = self.start()
        self.assertEqual(set(), of_first & pools(), "left behind by the start after a kill")
        self.assertEqual(set(), of_second - pools(), "removed by the start after a kill")
        self.complete(second_port)
        self.complete(third_port)


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
