"""Where a request's time went: `baton-ctl explain`, Server-Timing, include_timing and /metrics, against the
client's own clock."""

import http.client
import json
import re
import signal
import threading
import time
import unittest

from cluster import PAIR, PATIENCE, Cluster, wait_until

BEFORE_TOKENS = ("read", "tokenise", "queue", "prefill")


class Timed:
    """One request, timed by its client from the first byte sent to the last one read."""

    def __init__(self, cluster, name, prompt, frontend=None, **fields):
        port = next(iter(cluster.frontends.values()))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.connect()
        body = json.dumps({"prompt": prompt, "ignore_eos": True, **fields})
        begun = time.monotonic()
        connection.request("POST", "/v1/completions", body,
                           {"Content-Type": "application/json", "X-Request-Id": name})
        response = connection.getresponse()
        self.status = response.status
        self.text = response.read().decode()
        self.ms = (time.monotonic() - begun) * 1000
        self.headers = dict(response.getheaders())
        connection.close()

    def events(self):
        return [json.loads(line[6:]) for line in self.text.splitlines()
                if line.startswith("data: {")]


def server_timing(value):
    parts = {}
    for entry in value.split(", "):
        name, duration = re.fullmatch(r"([a-z_]+);dur=(\d+\.\d{3})", entry).groups()
        parts[name] = float(duration)
    return parts


def sums(cluster):
    text = cluster.get("/metrics")[1]
    pattern = r'baton_request_part_seconds_(sum|count)\{[^}]*part="([a-z_]+)"\} (\S+)'
    found = re.findall(pattern, text)
    return ({part: float(value) for kind, part, value in found if kind == "sum"},
            {part: int(value) for kind, part, value in found if kind == "count"})


class Explain(unittest.TestCase):
    def explain(self, cluster, name):
        code, text, complaint = wait_until(
            lambda: (answer := cluster.baton_ctl("explain", name, "--json"))[0] == 0 and answer, 10,
            f"{name} is explained: {cluster.baton_ctl('explain', name)}")
        self.assertEqual(code, 0, complaint)
        told = json.loads(text)
        self.assertAlmostEqual(sum(told["parts_ms"].values()), told["total_ms"], delta=1)
        code, text, _ = cluster.baton_ctl("explain", name)
        self.assertEqual(code, 0)
        self.assertTrue(text.startswith(name + "  POST /v1/completions"), text)
        return told

    def check_against_client(self, told, ms):
        """What the client waited is no less than what it was told, and little more: two sockets' ways.

        A busy machine may run the client between the front end's last write and its look at the clock."""
        self.assertLessEqual(told["total_ms"], ms + 5 * PATIENCE)
        self.assertLess(ms - told["total_ms"], 250 * PATIENCE)

    def test_plain_and_queued(self):
        # One prompt at a time in a step, and few that run: others wait behind it.
        with Cluster(scheduler={"max_running": 2}) as cluster:
            before = sums(cluster)[1]
            # Greedy, so that what is said here is said again below.
            plain = Timed(cluster, "plain", "What is Baton?", max_tokens=12, temperature=0)
            self.assertEqual(plain.status, 200, plain.text)
            told = self.explain(cluster, "plain")
            self.check_against_client(told, plain.ms)
            self.assertEqual((told["tokens"], told["end"], told["status"]), (12, "length", 200))
            self.assertTrue(told["scheduler_told"])
            self.assertEqual(told["decode_steps"], 11)
            workers = [(moment["what"], moment["worker"]) for moment in told["moments"]]
            self.assertIn(("chunk", "prefill0"), workers)
            self.assertIn(("pull", "decode0"), workers)
            self.assertIn(("decodes", "decode0"), workers)
            self.assertEqual([(move["from"], move["to"], move["why"]) for move in told["moves"]],
                             [("prefill0", "decode0", "handoff")])
            for part in ("read", "prefill", "decode"):
                self.assertGreater(told["parts_ms"][part], 0, told)

            header = server_timing(plain.headers["Server-Timing"])
            total = header.pop("total")
            self.assertAlmostEqual(sum(header.values()), total, delta=0.1)
            self.assertLessEqual(total, told["total_ms"] + 0.01)
            for part in BEFORE_TOKENS:
                self.assertAlmostEqual(header.get(part, 0), told["parts_ms"][part], delta=0.01)
            self.assertNotIn("timing", json.loads(plain.text))

            # Many at once: the last one waits behind others, and is told why.
            others = [threading.Thread(target=Timed, args=(cluster, f"other{i}", "Tell me of trains"),
                                       kwargs={"max_tokens": 120}) for i in range(6)]
            for thread in others:
                thread.start()
            wait_until(lambda: len(cluster.show("requests")) >= 6, 20, "six run or wait")
            queued = Timed(cluster, "queued", "And of boats", max_tokens=8,
                           stream_options={"include_timing": True})
            for thread in others:
                thread.join()
            self.assertEqual(queued.status, 200, queued.text)
            told = self.explain(cluster, "queued")
            self.check_against_client(told, queued.ms)
            waits = told["parts_ms"]["queue"] + told["parts_ms"]["decode_wait"]
            self.assertGreater(waits, 0.2 * told["total_ms"], told)
            if told["ahead"]:
                self.assertTrue(told["queue_reasons"], told)
            timing = json.loads(queued.text)["timing"]
            self.assertAlmostEqual(timing["queue_ms"], told["parts_ms"]["queue"], delta=0.01)

            # Ends by a stop string: the scheduler's last word comes later.
            text = json.loads(plain.text)["choices"][0]["text"]
            stop = text.strip().split(" ")[2]
            stopped = Timed(cluster, "stopped", "What is Baton?", max_tokens=12, stop=[stop], temperature=0)
            self.assertEqual(json.loads(stopped.text)["choices"][0]["finish_reason"], "stop")
            told = self.explain(cluster, "stopped")
            self.check_against_client(told, stopped.ms)
            self.assertIn("decodes", [moment["what"] for moment in told["moments"]])

            # Streams: in the last event, with and without usage, and only if asked for.
            for usage in (False, True):
                options = {"include_timing": True, "include_usage": usage}
                stream = Timed(cluster, f"stream{usage}", "What is Baton?", max_tokens=5, stream=True,
                               stream_options=options)
                last = stream.events()[-1]
                self.assertEqual(last["choices"], [])
                self.assertEqual("usage" in last, usage)
                parts = dict(last["timing"])
                total = parts.pop("total_ms")
                spent = [ms for part, ms in parts.items()
                         if part.endswith("_ms") and part != "median_gap_ms"]
                self.assertAlmostEqual(sum(spent), total, delta=0.1)
                self.check_against_client(self.explain(cluster, f"stream{usage}"), stream.ms)
            silent = Timed(cluster, "silent", "What is Baton?", max_tokens=5, stream=True)
            self.assertNotIn("timing", silent.text)

            # Counted by part; all of a request's parts are observed together.
            _, counts = sums(cluster)
            grown = {part: counts[part] - before[part] for part in counts}
            self.assertEqual(set(grown.values()), {12}, grown)
            code, _, complaint = cluster.baton_ctl("explain", "nobody")
            self.assertEqual(code, 1)
            self.assertIn("no request that is called nobody", complaint)
            cluster.assert_at_rest()

    def test_the_decode_worker_dies(self):
        with Cluster(workers=PAIR, memory=False) as cluster:
            found = {}

            def run():
                found["reply"] = Timed(cluster, "survivor", "What is Baton?", max_tokens=400)

            thread = threading.Thread(target=run)
            thread.start()
            wait_until(lambda: any(r["phase"] == "decode" and r["tokens"] > 5
                                   for r in cluster.show("requests")), 20, "it decodes")
            cluster.kill("decode0")
            time.sleep(0.3)
            cluster.start("decode0")
            thread.join()
            reply = found["reply"]
            self.assertEqual(reply.status, 200, reply.text)
            told = self.explain(cluster, "survivor")
            self.check_against_client(told, reply.ms)
            self.assertEqual(told["deaths"], 1)
            # Back again, if decode0 is there before the prefill worker has made the reply alone.
            moves = [(move["from"], move["to"], move["why"]) for move in told["moves"]]
            self.assertEqual(moves[:2], [("prefill0", "decode0", "handoff"),
                                         ("decode0", "prefill0", "died")])
            self.assertIn(moves[2:], [[], [("prefill0", "decode0", "handoff")]])
            self.assertIn("decode0 -> prefill0: decode0 was lost under it",
                          cluster.baton_ctl("explain", "survivor")[1])
            self.assertIn(("died", "decode0"), [(m["what"], m["worker"]) for m in told["moments"]])
            self.assertGreater(told["parts_ms"]["recompute"] + told["parts_ms"]["requeue"], 0)
            self.assertIn("recompute", server_timing(reply.headers["Server-Timing"]))

    def test_what_is_kept_outlives_processes(self):
        with Cluster() as cluster:
            first = Timed(cluster, "first", "What is Baton?", max_tokens=4)
            self.check_against_client(self.explain(cluster, "first"), first.ms)
            stream = cluster.stream("What is Baton?", max_tokens=300, ignore_eos=True)
            stream.wait_pieces(3)
            cluster.kill("scheduler")
            cluster.start("scheduler")
            stream.finish()
            code, text, complaint = cluster.baton_ctl("explain", "first")
            self.assertEqual(code, 0, complaint)
            cluster.restart("frontend0")
            cluster.wait_ready()
            second = Timed(cluster, "second", "What is Baton?", max_tokens=4)
            self.check_against_client(self.explain(cluster, "second"), second.ms)
            for name in ("frontend0", "scheduler"):
                cluster.signal(name, signal.SIGKILL)
                cluster.processes[name].wait()
            self.assertEqual(cluster.baton_ctl("explain", "first")[1], text)
            self.explain(cluster, "second")


if __name__ == "__main__":
    unittest.main()
