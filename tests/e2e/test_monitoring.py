"""The board and the alerts of docs/monitoring, against a Prometheus that scrapes a loaded cluster."""

import contextlib
import json
import math
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

from cluster import SOURCE, Cluster, free_port, wait_until

MONITORING = SOURCE / "docs" / "monitoring"
BOARD = json.loads((MONITORING / "grafana.json").read_text())
# What may be empty, or no number, here: query and why.
EMPTY = {}
# What a front end counts for all its models together.
OF_THE_PROCESS = re.compile(r"\bup\{|process_|baton_(http_replies|clients_dropped|replies_(taken_over|lost|unkept))_total"
                            r"|baton_connections\{|baton_write_queue_bytes")


class Prometheus(contextlib.AbstractContextManager):
    """Scrapes front ends once a second, with the rules of docs/monitoring."""

    def __init__(self, ports):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-prometheus-"))
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(MONITORING / "alerts.yml")],
            "scrape_configs": [{"job_name": "baton", "static_configs": [
                {"targets": [f"127.0.0.1:{port}" for port in ports]}]}],
        }
        (self.folder / "prometheus.yml").write_text(json.dumps(config))
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={self.folder / 'data'}",
                 f"--web.listen-address={self.url.removeprefix('http://')}"], stdout=log, stderr=log)

    def __exit__(self, error, *_):
        self.process.kill()
        self.process.wait()
        if error is not None:
            print((self.folder / "log").read_text(errors="replace")[-4000:])
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, path, **parameters):
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as r:
            return json.load(r)["data"]

    def query(self, expression):
        """[(labels, value)]"""
        return [(one["metric"], float(one["value"][1])) for one in self.ask("query", query=expression)["result"]]

    def wait_scraping(self, targets):
        def up():
            try:
                return sum(value for _, value in self.query('up{job="baton"}')) == targets
            except OSError:
                return False
        wait_until(up, 30, "Prometheus scrapes")


def queries():
    """(panel, query) of the board, with its variables filled in."""
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "8s").replace("$job", ".+").replace("$model", ".+")


def load(cluster, stop):
    """Streams, chats, a client that leaves and a request that is refused, on all front ends, until told to stop."""
    names = list(cluster.frontends)
    turn = 0
    while not stop.is_set():
        name = names[turn % len(names)]
        streams = [cluster.stream(f"Once upon a time there were {i} of them. " * 6, name, max_tokens=24, ignore_eos=True)
                   for i in range(3)]
        cluster.post("/v1/chat/completions", {"model": "demo", "max_tokens": 8, "messages": [
            {"role": "user", "content": "What is Baton? " * 8}]}, name)
        cluster.post("/v1/completions", {"prompt": "x", "max_tokens": -1}, name)
        gone = cluster.stream("Who leaves?", name, max_tokens=400, ignore_eos=True)
        gone.wait_pieces(2)
        gone.leave()
        for stream in streams:
            stream.finish()
        turn += 1


class Files(unittest.TestCase):
    def promtool(self, *words):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, cwd=MONITORING)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_rules_are_rules(self):
        self.promtool("check", "config", "prometheus.yml")

    def test_each_alert_fires_for_its_fault_and_for_nothing_else(self):
        self.promtool("test", "rules", "alerts_test.yml")

    def test_each_alert_has_a_fault_and_a_healthy_series(self):
        rules = (MONITORING / "alerts.yml").read_text()
        tried = (MONITORING / "alerts_test.yml").read_text()
        for alert in [line.split()[-1] for line in rules.splitlines() if "- alert:" in line]:
            self.assertIn(f"alertname: {alert}}}", tried, "does not fire")
            self.assertIn(f"alertname: {alert}\n        exp_alerts", tried, "fires")

    def test_the_board_is_one_that_grafana_reads(self):
        self.assertGreaterEqual(BOARD["schemaVersion"], 39)
        variables = {one["name"]: one["type"] for one in BOARD["templating"]["list"]}
        self.assertEqual(variables["datasource"], "datasource")
        self.assertEqual(variables["model"], "query")
        for panel in BOARD["panels"]:
            for target in panel.get("targets", []):
                self.assertNotEqual(OF_THE_PROCESS.search(target["expr"]) is None,
                                    'model_name=~"$model"' not in target["expr"], target["expr"])
        numbers = [panel["id"] for panel in BOARD["panels"]]
        self.assertEqual(len(set(numbers)), len(numbers))
        places = set()
        for panel in BOARD["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24)
            taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(places & taken, panel["title"])
            places |= taken
            if panel["type"] != "row":
                self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                self.assertTrue(panel["targets"], panel["title"])


class Live(unittest.TestCase):
    """One cluster and one Prometheus; a worker and a front end die under the load."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(frontends=("frontend0", "frontend1")))
        cls.prometheus = cls.enterClassContext(Prometheus(cls.cluster.frontends.values()))
        cls.prometheus.wait_scraping(2)
        stop = threading.Event()
        cls.load = threading.Thread(target=load, args=(cls.cluster, stop), daemon=True)
        cls.load.start()
        cls.addClassCleanup(cls.load.join)
        cls.addClassCleanup(stop.set)
        time.sleep(3)
        cls.cluster.restart("decode0")
        cls.cluster.restart("frontend1")
        wait_until(lambda: cls.cluster.worker_state("decode0") == "ready", 30, "decode0 is back")
        cls.prometheus.wait_scraping(2)

    def test_every_query_of_the_board_has_an_answer(self):
        def wrong():
            found = {}
            for panel, query in queries():
                values = self.prometheus.query(query)
                if not values:
                    found[query] = f"{panel}: nothing"
                elif not all(math.isfinite(value) for _, value in values):
                    found[query] = f"{panel}: {values}"
            return {query: what for query, what in found.items() if query not in EMPTY}

        end = time.monotonic() + 20
        while wrong() and time.monotonic() < end:
            time.sleep(1)
        self.assertEqual(wrong(), {})
        self.assertGreater(len(list(queries())), 40)

    def test_the_board_tells_of_deaths(self):
        def told():
            died = self.prometheus.query("max(baton_worker_deaths_total)")[0][1]
            taken = self.prometheus.query("sum(baton_replies_taken_over_total + baton_replies_lost_total)")[0][1]
            return (died, taken) if died >= 1 else None
        died, _ = wait_until(told, 20, "a worker's death is told")
        self.assertEqual(died, 1)
        ended = self.prometheus.query("max(baton_worker_terms_ended_total)")[0][1]
        self.assertEqual(ended, 1)
        self.assertGreater(self.prometheus.query("max(baton_handoffs_total)")[0][1], 5)

    def test_rules_are_evaluated_and_nothing_fires(self):
        def states():
            rules = [rule for group in self.prometheus.ask("rules")["groups"] for rule in group["rules"]]
            return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None
        rules = wait_until(states, 20, "rules are evaluated")
        self.assertEqual([rule["name"] for rule in rules if rule["health"] != "ok" or rule["state"] == "firing"], [])
        self.assertEqual(len(rules), (MONITORING / "alerts.yml").read_text().count("- alert:"))

    def test_promtool_has_nothing_against_the_page(self):
        page = self.cluster.get("/metrics")[1]
        check = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
        found = [line for line in (check.stdout + check.stderr).splitlines()
                 if not (line.startswith("vllm:") and line.endswith("should not contain ':'"))]
        self.assertEqual(found, [])

    def test_what_the_inference_extension_reads(self):
        pages = [self.cluster.get("/metrics", name)[1] for name in self.cluster.frontends]
        for page in pages:
            for name in ("vllm:num_requests_waiting{", "vllm:num_requests_running{", "vllm:kv_cache_usage_perc{",
                         "vllm:cache_config_info{", "vllm:lora_requests_info{max_lora="):
                self.assertIn("\n" + name, page)


if __name__ == "__main__":
    unittest.main()
