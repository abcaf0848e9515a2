"""Other servers' routers in front of two clusters, unchanged: they register both, and requests go through.

The routers are installed once, pinned in requirements-routers.txt; where they cannot be, the test is skipped.
"""

import json
import unittest

from cluster import Cluster
from routers import CHAT, Through

TEXT = {"model": "demo", "prompt": "What is Baton?", "max_tokens": 6, "temperature": 0, "seed": 1}


def pieces(stream, path):
    """The text of a stream, which must be whole."""
    events = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", stream
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert choices[-1]["finish_reason"] == "length", stream
    return "".join(choice["delta"].get("content") or "" if "chat" in path else choice["text"] for choice in choices)


class Routers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.clusters = [cls.enterClassContext(Cluster(workers=[("mixed0", "mixed")], fake=True)) for _ in range(2)]
        cls.urls = [f"http://127.0.0.1:{next(iter(c.frontends.values()))}" for c in cls.clusters]

    def tearDown(self):
        for cluster in self.clusters:
            cluster.assert_at_rest()

    def served(self):
        """Replies of status 200 that each cluster has given on the two routes."""
        counts = []
        for cluster in self.clusters:
            lines = cluster.get("/metrics")[1].splitlines()
            counts.append(sum(int(line.split()[-1]) for line in lines if line.startswith("baton_http_replies_total")
                              and "completions" in line and 'code="200"' in line))
        return counts

    def check_requests(self, router):
        before = self.served()
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
            texts = set()
            for _ in range(2):
                status, text = router.ask(path, body)
                self.assertEqual(status, 200, text)
                choice = json.loads(text)["choices"][0]
                self.assertEqual(choice["finish_reason"], "length")
                texts.add(choice["message"]["content"] if "message" in choice else choice["text"])
                status, text = router.ask(path, {**body, "stream": True})
                self.assertEqual(status, 200, text)
                texts.add(pieces(text, path))
            self.assertEqual(len(texts), 1, "the same request has the same answer, wherever it went")
        for before_it, after_it in zip(before, self.served(), strict=True):
            self.assertGreater(after_it, before_it, "both clusters were asked")
        status, text = router.ask("/v1/chat/completions", {**CHAT, "max_tokens": 10**6})
        self.assertEqual(status, 400, text)
        self.assertIn("context holds", text)

    def check_known(self):
        for cluster in self.clusters:
            log = (cluster.folder / "frontend0.log").read_text()
            self.assertNotIn("is ignored or replaced", log, "all that the routers add is known")

    def test_sglang_router(self):
        with Through("sglang", self.urls) as router:
            router.wait_ready()
            self.check_requests(router)
            models = json.loads(router.ask("/v1/models")[1])["data"]
            self.assertEqual({model["id"] for model in models}, {"demo"}, "as /server_info names it")
            self.assertEqual(router.loads(), [0, 0], "nothing runs, says /get_load")
            self.assertEqual(json.loads(router.ask("/get_model_info")[1])["model_path"], "demo")
        self.check_known()

    def test_vllm_router(self):
        with Through("vllm", self.urls) as router:
            router.wait_ready()
            self.check_requests(router)
            models = json.loads(router.ask("/v1/models")[1])["data"]
            self.assertEqual([model["id"] for model in models], ["demo"])
        self.check_known()


if __name__ == "__main__":
    unittest.main(verbosity=2)
