"""What a request's fields do, with the real model: log probabilities, choices, penalties, keys."""

import http.client
import json
import pathlib
import socket
import tempfile
import threading
import unittest
import zlib

from cluster import DEMO_MODEL, SOURCE, Cluster

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
GOLDEN = SOURCE / "tests" / "golden" / "loglikelihoods_demo.json"
KEY = "sk-0123456789abcdef"


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())

    def post(self, path, **body):
        status, reply = self.cluster.post(path, body)
        self.assertEqual(status, 200, reply)
        return reply

    def texts(self, **body):
        return [choice["text"] for choice in self.post(COMPLETIONS, **body)["choices"]]

    # ---- log probabilities
    def test_log_likelihoods_are_those_of_transformers(self):
        golden = json.loads(GOLDEN.read_text())
        weights = zlib.crc32((DEMO_MODEL / "model.safetensors").read_bytes())
        self.assertEqual(weights, golden["model_crc32"], "make_loglikelihoods.py was not run again")
        entries = golden["entries"]
        reply = self.post(COMPLETIONS, prompt=[entry["tokens"] for entry in entries], echo=True,
                          max_tokens=0, logprobs=1)
        self.assertEqual(reply["usage"]["completion_tokens"], 0)
        for entry, choice in zip(entries, reply["choices"], strict=True):
            told = choice["logprobs"]
            self.assertIsNone(told["token_logprobs"][0])
            self.assertEqual(len(told["tokens"]), len(entry["tokens"]))
            for i, wanted in enumerate(entry["logprobs"]):
                self.assertAlmostEqual(told["token_logprobs"][i + 1], wanted, delta=1e-4)
                greedy = entry["tokens"][i + 1] == entry["best"][i]
                self.assertEqual(max(told["top_logprobs"][i + 1].values())
                                 == told["token_logprobs"][i + 1], greedy)
        # vLLM's shape says the same.
        reply = self.post(COMPLETIONS, prompt=entries[0]["tokens"], max_tokens=1, prompt_logprobs=1)
        for i, places in enumerate(reply["choices"][0]["prompt_logprobs"][1:]):
            token = str(entries[0]["tokens"][i + 1])
            self.assertAlmostEqual(places[token]["logprob"], entries[0]["logprobs"][i], delta=1e-4)

    def test_generated_tokens_have_the_logprobs_that_they_have_in_a_prompt(self):
        made = self.post(COMPLETIONS, prompt="What is Baton?", max_tokens=20, temperature=0.8,
                         seed=3, logprobs=0, ignore_eos=True)["choices"][0]
        text = "What is Baton?" + made["text"]
        again = self.post(COMPLETIONS, prompt=text, max_tokens=0, echo=True,
                          logprobs=0)["choices"][0]["logprobs"]
        n = len(made["logprobs"]["tokens"])
        self.assertEqual(n, 20)
        if again["tokens"][-n:] == made["logprobs"]["tokens"]:  # the text may be cut otherwise
            for a, b in zip(again["token_logprobs"][-n:], made["logprobs"]["token_logprobs"]):
                self.assertAlmostEqual(a, b, delta=1e-5)

    # ---- choices
    def test_every_choice_is_what_its_seed_gives_alone(self):
        body = {"prompt": ["What is Baton?", "Hello"], "max_tokens": 24, "temperature": 1.0}
        together = self.texts(**body, n=3, seed=40)
        alone = [self.texts(**{**body, "prompt": prompt}, seed=40 + i)[0]
                 for prompt in body["prompt"] for i in range(3)]
        self.assertEqual(together, alone)
        self.assertGreater(len(set(together)), 3)
        best = self.post(COMPLETIONS, **{**body, "prompt": "Hello"}, seed=40, n=3, logprobs=0)
        means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
                 for c in best["choices"]]
        winner = best["choices"][means.index(max(means))]["text"]
        self.assertEqual(self.texts(**{**body, "prompt": "Hello"}, seed=40, best_of=3), [winner])

    def test_streams_of_choices_carry_the_same(self):
        body = {"messages": [{"role": "user", "content": "What is Baton?"}], "max_tokens": 16,
                "seed": 7, "n": 2, "logprobs": True, "top_logprobs": 2}
        whole = self.post(CHAT, **body)["choices"]
        port = next(iter(self.cluster.frontends.values()))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", CHAT, json.dumps({**body, "stream": True}))
        text, told, ends = ["", ""], [[], []], [None, None]
        self.addCleanup(connection.close)
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            i = choice["index"]
            text[i] += choice["delta"].get("content") or ""
            told[i] += (choice["logprobs"] or {"content": []})["content"]
            ends[i] = choice["finish_reason"] or ends[i]
        for i in range(2):
            self.assertEqual(text[i], whole[i]["message"]["content"])
            self.assertEqual(told[i], whole[i]["logprobs"]["content"])
            self.assertEqual(ends[i], whole[i]["finish_reason"])
            self.assertTrue(all(len(entry["top_logprobs"]) == 2 for entry in told[i]))

    # ---- the fields of the sampler
    def test_a_request_does_not_depend_on_its_batch_mates(self):
        base = {"prompt": "The old man went to", "max_tokens": 32, "seed": 12, "ignore_eos": True,
                "temperature": 1.8}
        kinds = [{}, {"repetition_penalty": 2.5}, {"presence_penalty": 2},
                 {"frequency_penalty": 2, "min_p": 0.05}, {"typical_p": 0.5},
                 {"logit_bias": {"300": 9}}, {"allowed_token_ids": list(range(300, 340))},
                 {"bad_words": ["the", "Baton"]}, {"logprobs": 3}]
        alone = [self.texts(**base, **kind)[0] for kind in kinds]
        self.assertGreater(len(set(alone)), 6)
        self.assertNotIn("Baton", alone[7])
        mixed = [None] * len(kinds)

        def run(i):
            mixed[i] = self.texts(**base, **kinds[i])[0]

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(kinds))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(mixed, alone)

    def test_tokens_there_and_back(self):
        ids = self.post("/tokenize", prompt="What is Baton?")
        self.assertEqual(ids["count"], len(ids["tokens"]))
        text = self.post("/detokenize", tokens=ids["tokens"])["prompt"]
        self.assertTrue(text.endswith("What is Baton?"), text)
        status, reply = self.cluster.post("/v1/embeddings", {"input": "x"})
        self.assertEqual((status, reply["error"]["code"]), (400, "wrong_task"))
        status, text = self.cluster.get("/version")
        self.assertTrue(json.loads(text)["version"])


class Keys(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (folder / "keys").write_text(f"{KEY} name=alice streams=2 tokens_per_minute=60\n")
        cls.cluster = cls.enterClassContext(
            Cluster(fake=True, frontend={"api_keys": str(folder / "keys")}))

    def ask(self, method, path, key=None, body=None):
        port = next(iter(self.cluster.frontends.values()))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        connection.request(method, path, body and json.dumps(body), headers)
        self.addCleanup(connection.close)
        response = connection.getresponse()
        return response, json.loads(response.read() or b"null")

    def test_without_a_key_no_body_is_awaited(self):
        port = next(iter(self.cluster.frontends.values()))
        for key, status in (("", b"401"), (f"Authorization: Bearer {KEY}x\r\n", b"401"),
                            (f"x-api-key: {KEY}x\r\n", b"401"), (f"x-api-key: {KEY}\r\n", b""),
                            (f"Authorization: Bearer {KEY}\r\n", b"")):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                client.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{key}"
                               "Content-Length: 4000000\r\n\r\n{".encode())
                if not status:  # its body is awaited
                    client.settimeout(0.5)
                    self.assertRaises(TimeoutError, client.recv, 1)
                    continue
                self.assertEqual(client.recv(65536).split()[1], status)

    def test_keys_and_limits(self):
        self.assertEqual(self.ask("GET", "/health")[0].status, 200)
        for method, path in [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/nowhere"),
                             ("POST", COMPLETIONS)]:
            for key in (None, KEY + "x"):
                response, body = self.ask(method, path, key)
                self.assertEqual(response.status, 401, path)
                self.assertEqual(response.getheader("WWW-Authenticate"), "Bearer")
                self.assertEqual(body["error"]["code"], "invalid_api_key")
        self.assertEqual(self.ask("GET", "/v1/models", KEY)[0].status, 200)
        body = {"prompt": "Hello", "max_tokens": 40, "ignore_eos": True}
        response, reply = self.ask("POST", COMPLETIONS, KEY, {**body, "n": 3})
        self.assertEqual(response.status, 400, reply)
        statuses = []
        for _ in range(4):
            response, reply = self.ask("POST", COMPLETIONS, KEY, body)
            statuses.append(response.status)
        self.assertEqual(statuses, [200, 200, 429, 429])
        self.assertGreater(int(response.getheader("Retry-After")), 5)


if __name__ == "__main__":
    unittest.main()
