"""Replies held to a grammar, with the real model and real processes."""

import concurrent.futures
import json
import re
import threading
import time
import unittest

from cluster import MIXED, PATIENCE, Cluster, wait_until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "grün"]}, "minItems": 1, "maxItems": 3},
        "home": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "home"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
# Takes some time, and has one way to go on at each place.
LONG = "([a-z]{3} ){60}end"


def is_person(text):
    value = json.loads(text)
    return (list(value) == ["name", "age", "tags", "home"] and isinstance(value["name"], str)
            and len(value["name"]) <= 8 and isinstance(value["age"], int)
            and 0 <= value["age"] <= 150 and 1 <= len(value["tags"]) <= 3
            and set(value["tags"]) <= {"red", "grün"} and isinstance(value["home"], bool))


class Grammars(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(worker={"step_delay_ms": 1},
                                                     frontend={"grammar_cpu_s": 1}))

    def post(self, path, status=200, **body):
        got, reply = self.cluster.post(path, body)
        self.assertEqual(got, status, reply)
        return reply

    def text(self, **body):
        choice = self.post(COMPLETIONS, max_tokens=800, **body)["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop", choice)
        return choice["text"]

    def test_every_reply_is_what_the_schema_says(self):
        for seed in range(12):
            text = self.text(prompt="Who is it?", response_format=FORMAT, seed=seed,
                             temperature=1 + seed % 2)
            self.assertTrue(is_person(text), text)

    def test_choices_each_have_a_place_of_their_own(self):
        reply = self.post(COMPLETIONS, prompt="Who?", n=4, max_tokens=800, temperature=2, seed=5,
                          response_format=FORMAT)
        texts = [choice["text"] for choice in reply["choices"]]
        self.assertTrue(all(map(is_person, texts)), texts)
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(texts[2], self.text(prompt="Who?", temperature=2, seed=7,
                                             response_format=FORMAT))

    def test_the_other_fields(self):
        self.assertRegex(self.text(prompt="When?", guided_regex=r"\d{4}-(0[1-9]|1[0-2])"),
                         r"^\d{4}-(0[1-9]|1[0-2])$")
        self.assertIn(self.text(prompt="?", guided_choice=["left", "right"], temperature=2),
                      ["left", "right"])
        self.assertIn(self.text(prompt="?", structured_outputs={"grammar": 'root ::= "x" | "yy"'}),
                      ["x", "yy"])
        self.assertTrue(is_person(self.text(prompt="?", guided_json=PERSON)))
        reply = self.post(CHAT, messages=[{"role": "user", "content": "Who?"}], max_tokens=800,
                          response_format=FORMAT, temperature=1.5, seed=1)
        self.assertTrue(is_person(reply["choices"][0]["message"]["content"]), reply)
        reply = self.post(COMPLETIONS, prompt="{", max_tokens=40, seed=1,
                          response_format={"type": "json_object"})
        self.assertTrue(reply["choices"][0]["text"].startswith("{"), reply)

    def test_a_stream_is_the_whole_reply(self):
        body = {"response_format": FORMAT, "seed": 3, "temperature": 1.5, "max_tokens": 800}
        stream = self.cluster.stream("Who is it?", **body)
        text, _, reason = stream.finish()
        self.assertEqual((text, reason), (self.text(prompt="Who is it?", **{
            key: value for key, value in body.items() if key != "max_tokens"}), "stop"))

    def test_log_probabilities_are_those_of_what_is_left(self):
        choice = self.post(COMPLETIONS, prompt="?", guided_choice=["yes"], logprobs=3,
                           max_tokens=9)["choices"][0]
        self.assertEqual(choice["text"], "yes")
        told = choice["logprobs"]["token_logprobs"]
        self.assertTrue(all(-1e4 < value <= 0 for value in told), told)

    def test_what_is_complete_ends_whatever_min_tokens_says(self):
        choice = self.post(COMPLETIONS, prompt="?", guided_choice=["yes"], min_tokens=20,
                           max_tokens=30)["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), ("yes", "stop"))

    def test_masks_that_exclude_each_other_fail_that_request_alone(self):
        status, reply = self.cluster.post(COMPLETIONS, {
            "prompt": "?", "guided_regex": "[0-9]+", "allowed_token_ids": [700], "max_tokens": 5})
        self.assertGreaterEqual(status, 400, reply)
        self.assertIn("grammar", reply["error"]["message"])
        self.assertEqual(self.text(prompt="?", guided_choice=["ok"]), "ok")

    def test_batch_mates_change_nothing(self):
        requests = [{"prompt": f"Number {i}", "seed": i, "temperature": 1.5,
                     **({"response_format": FORMAT} if i % 2 else {})} for i in range(8)]
        run = lambda body: self.post(COMPLETIONS, max_tokens=200, **body)["choices"][0]["text"]
        solo = [run(body) for body in requests]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(run, requests)), solo)
        self.cluster.assert_at_rest()

    def test_what_explodes_is_refused_in_time_and_others_are_served(self):
        bodies = [
            {"guided_regex": "(a|aa|aaa)*" * 3000},
            {"guided_json": '{"type":"array","items":' * 20 + "{}" + "}" * 20},
            {"guided_grammar": "root ::= " + "(" * 30000 + '"a"' + ")" * 30000},
            {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                                             "b": {"$ref": "#/$defs/a"}}}},
            {"guided_regex": "(a"},
        ]
        threads, slow = [], []
        for body in bodies:
            def ask(body=body):
                began = time.monotonic()
                status, reply = self.cluster.post(COMPLETIONS, {"prompt": "?", "max_tokens": 1, **body})
                slow.append((time.monotonic() - began, status, reply))
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
        free = self.post(COMPLETIONS, prompt="?", max_tokens=20)  # nothing else waits for them
        self.assertEqual(len(free["choices"]), 1)
        for thread in threads:
            thread.join()
        self.assertEqual(len(slow), len(bodies))
        for seconds, status, reply in slow:
            self.assertLess(seconds, 40 * PATIENCE)
            self.assertIn(status, (200, 400), reply)
        self.assertGreaterEqual(sum(status == 400 for _, status, _ in slow), 4, slow)
        wrong = self.post(COMPLETIONS, 400, prompt="?", guided_regex="(a")
        self.assertEqual(wrong["error"]["param"], "guided_regex")


class Slow(unittest.TestCase):
    """Grammars that take seconds to compile."""

    PARTS = "".join(f"[a-z ]{{1,{100 + i}}}[0-9]" for i in range(40))

    def test_nobody_waits_but_the_request_itself(self):
        with Cluster(workers=MIXED, worker={"threads": 1, "step_delay_ms": 2}) as cluster:
            stream = cluster.stream("What is Baton?", max_tokens=8000, min_tokens=8000)
            stream.wait_pieces(20)
            begin = time.monotonic()
            status, reply = cluster.post(COMPLETIONS, {"prompt": "Write.", "max_tokens": 8, "guided_regex": self.PARTS})
            end = time.monotonic()
            self.assertEqual(status, 200, reply)
            self.assertFalse(stream.done.is_set(), "the stream is too short for this machine")
            arrivals = [t for t in stream.arrivals if begin <= t <= end]
            stream.leave()
            longest = max(b - a for a, b in zip(arrivals, arrivals[1:]))
            # The front end has compiled it, and then the worker.
            self.assertLess(longest, (end - begin) / 4, f"a stream stood still for {longest} of {end - begin} s")
            cluster.assert_at_rest()

    def test_a_worker_that_dies_while_it_compiles(self):
        with Cluster(worker={"step_delay_ms": 2}) as cluster:
            for worker in ("prefill0", "decode0"):
                request = {"prompt": "Write.", "max_tokens": 8, "guided_regex": f"[{worker[0]}]{self.PARTS}", "seed": 3}
                stream = cluster.stream(**request)
                waits = lambda: any(r["waits_for"] for r in cluster.show("requests"))
                wait_until(waits, 60, "a request that waits for a grammar")
                cluster.restart(worker)
                text, _, reason = stream.finish()
                self.assertEqual(reason, "length")
                self.assertEqual(cluster.stream(**request).finish()[0], text)
            cluster.assert_at_rest()


class Deaths(unittest.TestCase):
    REQUEST = {"guided_regex": LONG, "max_tokens": 300, "seed": 11, "temperature": 1.5}

    def test_a_worker_dies_in_the_middle(self):
        with Cluster(worker={"step_delay_ms": 5}) as cluster:
            calm, _, reason = cluster.stream("Words:", **self.REQUEST).finish()
            self.assertEqual(reason, "stop")
            self.assertTrue(re.fullmatch(LONG, calm), calm)
            for victim in ("decode0", "prefill0"):
                stream = cluster.stream("Words:", **self.REQUEST)
                stream.wait_pieces(10)
                cluster.restart(victim)
                self.assertEqual(stream.finish()[0], calm)
            stream = cluster.stream("Words:", **self.REQUEST)
            stream.wait_pieces(10)
            cluster.restart("scheduler")
            self.assertEqual(stream.finish()[0], calm)
            cluster.wait_ready()
            cluster.assert_at_rest()

    def test_preemption_keeps_the_place(self):
        requests = [{**self.REQUEST, "seed": seed} for seed in range(12)]
        texts = []
        for options in ({}, {"pool_blocks": 24}):
            with Cluster(worker=options) as cluster:
                streams = [cluster.stream("Words:", **body) for body in requests]
                texts.append([stream.finish()[0] for stream in streams])
                preemptions = cluster.show("info")["counters"]["preemptions"]
        self.assertEqual(texts[0], texts[1])
        self.assertGreater(preemptions, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
