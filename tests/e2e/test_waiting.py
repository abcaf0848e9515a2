"""What a stream's client hears before the first token: how far its prompt is (`return_progress`) and
comments; beside deaths, too."""

import http.client
import json
import threading
import time
import unittest

from cluster import MIXED, Cluster, wait_until

# Steps of 16 prompt tokens that take a fifth of a second each.
CHUNKS = {"fake": True, "workers": MIXED, "scheduler": {"prompt_chunk": 16}, "worker": {"step_delay_ms": 200, "pool_mib": 64}}
PROMPT = "Tell me about number one. " * 12


class Waiting:
    """A stream whose lines are kept as they come."""

    def __init__(self, cluster, path="/v1/completions", **body):
        port = next(iter(cluster.frontends.values()))
        self.lines = []
        self.status = None
        self.failure = None
        self.done = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._asked = (path, json.dumps({"stream": True, "max_tokens": 4, "ignore_eos": True, **body}))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            self._connection.request("POST", *self._asked)
            response = self._connection.getresponse()
            self.status = response.status
            for line in response:
                self.lines.append(line.decode().strip())
        except Exception as failure:  # the test looks at it
            self.failure = repr(failure)
        finally:
            self.done.set()
            self._connection.close()

    def events(self):
        return [json.loads(line[6:]) for line in list(self.lines) if line.startswith("data: {")]

    def progress(self):
        return [event["prompt_progress"] for event in self.events() if "prompt_progress" in event]

    def comments(self):
        return self.lines.count(": keep-alive")

    def finish(self):
        if not self.done.wait(60) or self.failure:
            raise AssertionError(f"{self.failure}: {self.lines[-5:]}")
        return self


class Progress(unittest.TestCase):
    def check(self, told, total=None):
        """What is told of a prompt that is computed once, from its beginning to its end."""
        self.assertEqual(len({one["total"] for one in told}), 1, told)
        self.assertEqual(told[-1]["processed"], total or told[-1]["total"])
        for before, after in zip(told, told[1:]):
            self.assertLess(before["processed"], after["processed"])
            self.assertLessEqual(before["time_ms"], after["time_ms"])

    def test_chunks_choices_and_chats(self):
        with Cluster(**CHUNKS) as cluster:
            stream = Waiting(cluster, prompt=PROMPT, return_progress=True, stream_options={"include_usage": True}).finish()
            told = stream.progress()
            self.check(told)
            self.assertGreaterEqual(len(told), 4)
            self.assertEqual({one["cache"] for one in told}, {0})
            self.assertGreaterEqual(told[-1]["time_ms"], 600)
            events = stream.events()
            first_text = next(i for i, event in enumerate(events) if event["choices"] and event["choices"][0]["text"])
            last_told = max(i for i, event in enumerate(events) if "prompt_progress" in event)
            self.assertLess(last_told, first_text)
            self.assertEqual(events[-1]["usage"]["prompt_tokens"], told[0]["total"])
            self.assertEqual({event["choices"][0]["text"] for event in events if "prompt_progress" in event}, {""})

            again = Waiting(cluster, prompt=PROMPT, return_progress=True).finish().progress()
            self.check(again)
            self.assertGreater(again[0]["cache"], 0)
            self.assertGreaterEqual(again[0]["processed"], again[0]["cache"])

            chat = Waiting(cluster, "/v1/chat/completions", messages=[{"role": "user", "content": "Of boats. " * 30}],
                           n=2, return_progress=True).finish()
            for choice in (0, 1):
                self.check([event["prompt_progress"] for event in chat.events()
                            if "prompt_progress" in event and event["choices"][0]["index"] == choice])
            self.assertEqual({json.dumps(event["choices"][0]["delta"]) for event in chat.events() if "prompt_progress" in event},
                             {"{}"})
            silent = Waiting(cluster, prompt="And of trains. " * 20).finish()
            self.assertEqual(silent.progress(), [])
            status, whole = cluster.post("/v1/completions", {"prompt": "no stream", "return_progress": True, "max_tokens": 1})
            self.assertEqual(status, 200)
            self.assertNotIn("prompt_progress", whole)
            status, error = cluster.post("/v1/completions", {"prompt": "a", "return_progress": 1})
            self.assertEqual((status, error["error"]["param"]), (400, "return_progress"))

    def test_a_worker_dies(self):
        with Cluster(**CHUNKS, memory=False) as cluster:
            stream = Waiting(cluster, prompt=PROMPT, return_progress=True)
            wait_until(lambda: len(stream.progress()) >= 2, 20, "two chunks")
            cluster.restart("mixed0")
            told = stream.finish().progress()
            self.assertEqual(len({one["total"] for one in told}), 1, told)
            drops = [i for i in range(1, len(told)) if told[i]["processed"] < told[i - 1]["processed"]]
            self.assertEqual(len(drops), 1, told)
            self.check(told[drops[0]:])

    def test_the_front_end_and_the_scheduler_die(self):
        with Cluster(**CHUNKS) as cluster:
            stream = Waiting(cluster, prompt=PROMPT, return_progress=True)
            wait_until(lambda: len(stream.progress()) >= 2, 20, "two chunks")
            cluster.restart("frontend0")
            told = stream.finish().progress()
            self.check(told)
            self.assertEqual(stream.lines[-2], "data: [DONE]")

            stream = Waiting(cluster, prompt="Or " + PROMPT, return_progress=True)
            wait_until(lambda: len(stream.progress()) >= 2, 20, "two chunks")
            cluster.restart("scheduler")
            told = stream.finish().progress()
            self.assertEqual(len({one["total"] for one in told}), 1, told)
            self.assertEqual(told[-1]["processed"], told[-1]["total"])
            cluster.assert_at_rest()


class Comments(unittest.TestCase):
    def test_before_the_first_token(self):
        slow = {**CHUNKS, "worker": {"step_delay_ms": 4000, "pool_mib": 64}}
        with Cluster(frontend={"sse_keepalive_s": 1}, **slow) as cluster:
            stream = Waiting(cluster, prompt="hello", max_tokens=1)
            wait_until(lambda: stream.comments() >= 1, 10, "a comment")
            self.assertEqual((stream.status, stream.events()), (200, []))
            cluster.restart("frontend0")
            told = stream.comments()
            stream.finish()
            self.assertGreater(stream.comments(), told)
            self.assertLessEqual(stream.comments(), 8)
            self.assertEqual(stream.lines[-2], "data: [DONE]")

            # The status is out: what fails is told as an event.
            late = Waiting(cluster, prompt="hello", timeout_s=3).finish()
            self.assertEqual(late.status, 200)
            self.assertGreaterEqual(late.comments(), 1)
            self.assertEqual(late.events()[-1]["error"]["code"], "deadline_exceeded")
            # Anything but a stream of events has its status.
            status, _ = cluster.post("/v1/completions", {"prompt": "hello", "timeout_s": 2})
            self.assertEqual(status, 504)
            early = Waiting(cluster, prompt="hello", timeout_s=0.3)
            early.done.wait(20)
            self.assertEqual(early.status, 504)

    def test_none(self):
        slow = {**CHUNKS, "worker": {"step_delay_ms": 2500, "pool_mib": 64}}
        with Cluster(frontend={"sse_keepalive_s": 0}, **slow) as cluster:
            begun = time.monotonic()
            stream = Waiting(cluster, prompt="hello", max_tokens=1).finish()
            self.assertGreater(time.monotonic() - begun, 2)
            self.assertEqual(stream.comments(), 0)


if __name__ == "__main__":
    unittest.main()
