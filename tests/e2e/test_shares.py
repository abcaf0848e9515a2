"""API keys as tenants: their limits, a file that is read again, and their shares of the queue."""

import http.client
import json
import pathlib
import tempfile
import threading
import time
import unittest

from cluster import MIXED, wait_until
from supervised import Supervised

COMPLETIONS = "/v1/completions"
ALICE, BOB, CAROL, HEAVY = (f"sk-{name}-0123456789abcdef" for name in ("alice", "bob", "carol", "heavy"))

KEYS = f"""\
keys:
  - name: alice
    key: {ALICE}
    weight: 2
    priority: -1
  - name: bob
    key: {BOB}
    requests_per_minute: 2
  - name: heavy
    key: {HEAVY}
    priority: -1
"""


class Shares(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.file = folder / "keys.yaml"
        cls.file.write_text(KEYS)
        cls.cluster = cls.enterClassContext(Supervised(
            workers=MIXED, fake=True, frontend={"api_keys": str(cls.file), "cache_salt_by_key": True},
            scheduler={"queue_order": "fair", "max_running": 4}))

    def setUp(self):
        self.reload(KEYS, "3 API keys were read again")

    def ask(self, key, method="POST", path=COMPLETIONS, **body):
        port = next(iter(self.cluster.frontends.values()))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True, **body}
        connection.request(method, path, json.dumps(body) if method == "POST" else None,
                           {"Authorization": f"Bearer {key}"})
        try:
            response = connection.getresponse()
            return response, response.read().decode()
        finally:
            connection.close()

    def log(self):
        return (self.cluster.folder / "run" / "logs" / "frontend0.log").read_text()

    def reload(self, text, says):
        """By baton-ctl, until the log says what came of it."""
        before = self.log().count(says)
        self.file.write_text(text)
        code, out, complaint = self.cluster.baton_ctl("reload", "keys")
        self.assertEqual(code, 0, complaint)
        self.assertIn("frontend0 reads its API keys again", out)
        wait_until(lambda: self.log().count(says) > before, 10, says)

    def tenants(self):
        return {tenant["name"]: tenant for tenant in self.cluster.show("tenants")}

    def test_a_limit_is_named_and_headers_tell_what_is_left(self):
        # A bucket of another size begins full.
        self.reload(KEYS.replace("minute: 2", "minute: 3"), "3 API keys were read again")
        left = []
        for _ in range(3):
            response, text = self.ask(BOB)
            self.assertEqual(response.status, 200, text)
            self.assertEqual(response.getheader("x-ratelimit-limit-requests"), "3")
            left.append(response.getheader("x-ratelimit-remaining-requests"))
        self.assertEqual(left, ["2", "1", "0"])
        response, text = self.ask(BOB)
        self.assertEqual(response.status, 429)
        error = json.loads(text)["error"]
        self.assertEqual((error["code"], error["type"], error["param"]),
                         ("rate_limit_exceeded", "rate_limit_error", "requests_per_minute"))
        self.assertIn("3 requests_per_minute", error["message"])
        self.assertLessEqual(int(response.getheader("Retry-After")), 20)
        self.assertEqual(response.getheader("x-ratelimit-remaining-requests"), "0")
        metrics = self.ask(ALICE, "GET", "/metrics")[1]
        self.assertIn('baton_key_refused_total{key="bob",limit="requests_per_minute"} 1', metrics)
        self.assertIn('baton_key_open_streams{key="bob"} 0', metrics)
        self.assertEqual(self.ask(ALICE)[0].getheader("x-ratelimit-limit-requests"), None)

    def test_limits_hold_wherever_work_is_done_and_refused_requests_count(self):
        self.reload(KEYS.replace("minute: 2", "minute: 8"), "3 API keys were read again")
        chat = {"messages": [{"role": "user", "content": "Hello"}]}
        asked = [("/tokenize", {}, 200), ("/detokenize", {"tokens": [5, 6]}, 200), ("/tokenize", chat, 200),
                 ("/v1/completions/render", {}, None), ("/v1/messages/count_tokens", {**chat, "model": "m"}, None),
                 (COMPLETIONS, {"temperature": "hot"}, 400), (COMPLETIONS, {"model": "nobody's"}, 404),
                 (COMPLETIONS, {}, 200)]
        for left, (path, body, status) in zip(range(7, -1, -1), asked):
            response, text = self.ask(BOB, path=path, **body)
            if status:
                self.assertEqual(response.status, status, (path, text))
            self.assertEqual(response.getheader("x-ratelimit-remaining-requests"), str(left), (path, text))
        for path in ("/tokenize", "/v1/messages/count_tokens", COMPLETIONS):
            response, text = self.ask(BOB, path=path)
            self.assertEqual(response.status, 429, (path, text))
            self.assertIn("8 requests_per_minute", text)
            self.assertLessEqual(int(response.getheader("Retry-After")), 8)
        self.assertEqual(self.ask(BOB, "GET", "/v1/models")[0].status, 200, "pages cost no work")
        self.assertEqual(self.ask(ALICE, path="/tokenize")[0].status, 200)

    def test_a_file_that_everybody_may_write_is_not_taken(self):
        self.file.chmod(0o666)
        try:
            self.reload(KEYS, f"the API keys stay as they were: {self.file}: every user may write it")
        finally:
            self.file.chmod(0o600)

    def test_a_file_is_read_again_and_a_bad_one_is_not_taken(self):
        self.assertEqual(self.ask(CAROL)[0].status, 401)
        self.reload(KEYS + f"  - name: carol\n    key: {CAROL}\n", "4 API keys were read again")
        self.assertEqual(self.ask(CAROL)[0].status, 200)
        self.reload(KEYS + "    colour: red\n",
                    "the API keys stay as they were: " + str(self.file) + ":12: 'colour' is not known")
        self.assertEqual(self.ask(CAROL)[0].status, 200)
        self.reload(KEYS, "3 API keys were read again")
        self.assertEqual(self.ask(CAROL)[0].status, 401)
        # Its next process reads the same file.
        self.file.write_text(KEYS + f"  - name: carol\n    key: {CAROL}\n")
        self.cluster.kill("frontend0")
        self.cluster.wait_ready()
        self.assertEqual(self.ask(CAROL)[0].status, 200)
        code, _, complaint = self.cluster.baton_ctl("reload", "everything")
        self.assertEqual((code, complaint), (1, "baton-ctl: usage: reload keys\n"))

    def test_the_scheduler_knows_whose_they_are(self):
        self.ask(ALICE, max_tokens=7)
        wait_until(lambda: self.tenants()["alice"]["open"] == 0, 10, "its end is known")
        before = self.tenants()["alice"]
        self.assertEqual((before["weight"], before["priority"]), (2, -1))
        self.ask(ALICE, max_tokens=7)
        wait_until(lambda: self.tenants()["alice"]["open"] == 0, 10, "its end is known")
        after = self.tenants()["alice"]
        self.assertEqual(after["output_tokens"] - before["output_tokens"], 7)
        self.assertEqual(after["requests"] - before["requests"], 1)
        self.assertIn("alice", self.cluster.ctl("show tenants"))

    def test_keys_do_not_learn_what_others_sent(self):
        """With cache_salt_by_key, which the set-up has."""
        def cached(key, **fields):
            response, text = self.ask(key, prompt="The same beginning of two tenants' prompts. " * 20, **fields)
            self.assertEqual(response.status, 200, text)
            return json.loads(text)["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)

        self.assertEqual(cached(ALICE), 0)
        self.assertGreater(cached(ALICE), 0)
        self.assertEqual(cached(HEAVY), 0)
        self.assertGreater(cached(HEAVY), 0)
        self.assertEqual(cached(HEAVY, cache_salt="another"), 0)

    def test_a_flood_of_one_key_does_not_hold_up_another(self):
        """Both have one priority; 4 run at once."""
        ends = {}

        def run(key, name):
            response, text = self.ask(key, max_tokens=1500)
            self.assertEqual(response.status, 200, text)
            ends[name] = time.monotonic()

        threads = [threading.Thread(target=run, args=(HEAVY, f"heavy{i}")) for i in range(40)]
        for thread in threads:
            thread.start()
        wait_until(lambda: self.tenants().get("heavy", {}).get("waiting", 0) >= 20, 30, "a queue")
        light = threading.Thread(target=run, args=(ALICE, "light"))
        light.start()
        for thread in [*threads, light]:
            thread.join()
        order = sorted(ends, key=ends.get)
        # At most what ran when it came, and what began beside it, ends before.
        self.assertLess(order.index("light"), 40 - 20 + 4 + 4, order)


if __name__ == "__main__":
    unittest.main()
