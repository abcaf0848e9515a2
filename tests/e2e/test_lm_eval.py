"""lm-eval itself against a front end, from local documents: tests/lm_eval.

Its log-likelihoods are those that transformers gives on the demo model (tests/golden/make_loglikelihoods.py),
to 1e-4. It is installed once, pinned in requirements-lm_eval.txt; where it cannot be, the test is skipped.
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest
import zlib

import client_packages
from cluster import DEMO_MODEL, MIXED, SOURCE, Cluster

client_packages.install("lm_eval")
CACHE = tempfile.TemporaryDirectory(prefix="baton-lm-eval-")
os.environ.update(HF_HOME=CACHE.name, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
                  HF_HUB_DISABLE_TELEMETRY="1", NO_PROXY="127.0.0.1")
import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

TASKS = SOURCE / "tests" / "lm_eval"
GOLDEN = SOURCE / "tests" / "golden" / "loglikelihoods_demo.json"
TOLERANCE = 1e-4


def only_this_machine(event, arguments):
    """Nothing but the front end may be asked: a document that is not local fails."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        if arguments[1][0] != "127.0.0.1":
            raise ConnectionError(f"lm-eval connects to {arguments[1]}")
    elif event == "socket.getaddrinfo" and arguments[0] not in ("127.0.0.1", "localhost"):
        raise ConnectionError(f"lm-eval looks up {arguments[0]}")


def setUpModule():
    os.chdir(SOURCE)  # the tasks name their documents from here
    sys.addaudithook(only_this_machine)
    unittest.addModuleCleanup(CACHE.cleanup)


class Tasks:
    """The same tasks, whatever workers there are and however lm-eval asks."""

    WORKERS = None
    ASKED = None

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(workers=cls.WORKERS))
        cls.manager = TaskManager(include_path=str(TASKS), include_defaults=False)

    def evaluate(self, task, model="local-completions", path="completions", **options):
        """Runs one task: its metrics, and what was answered to each document."""
        port = next(iter(self.cluster.frontends.values()))
        results = lm_eval.simple_evaluate(
            model=model, tasks=[task], task_manager=self.manager, bootstrap_iters=0,
            batch_size=options.pop("batch_size", self.ASKED["batch_size"]),
            model_args={"model": "demo", "base_url": f"http://127.0.0.1:{port}/v1/{path}",
                        "num_concurrent": self.ASKED["num_concurrent"], "max_length": 2048,
                        "max_retries": 1, "timeout": 60, **options},
            apply_chat_template=model == "local-chat-completions")
        samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
        documents = json.loads(pathlib.Path(
            results["configs"][task]["dataset_kwargs"]["data_files"]).read_text())
        self.assertEqual([sample["doc"] for sample in samples], documents)
        return results["results"][task], samples

    def evaluate_ids(self, task, **options):
        """With prompts of token ids, by transformers' tokenizer."""
        return self.evaluate(task, tokenizer=str(DEMO_MODEL), tokenizer_backend="huggingface",
                             tokenized_requests=True, **options)

    def assert_near(self, told, wanted):
        self.assertLessEqual(abs(told - wanted), TOLERANCE, f"{told}, transformers: {wanted}")

    def test_log_likelihoods(self):
        metrics, samples = self.evaluate_ids("baton_pairs", add_bos_token=True)
        for sample in samples:
            (told, greedy), = (answer for answers in sample["resps"] for answer in answers)
            self.assert_near(told, sample["doc"]["loglikelihood"])
            self.assertIs(greedy, sample["doc"]["greedy"])
        self.assertEqual(metrics["acc,none"],
                         sum(sample["doc"]["greedy"] for sample in samples) / len(samples))

    def test_multiple_choice(self):
        metrics, samples = self.evaluate_ids("baton_choices", add_bos_token=True)
        right = 0
        for sample in samples:
            wanted = sample["doc"]["loglikelihoods"]
            for (told, _), likelihood in zip([answers[0] for answers in sample["resps"]], wanted,
                                             strict=True):
                self.assert_near(told, likelihood)
            right += wanted.index(max(wanted)) == sample["doc"]["label"]
        self.assertEqual(metrics["acc,none"], right / len(samples))
        self.assertTrue(0 < right < len(samples))

    def test_texts_as_a_whole(self):
        _, samples = self.evaluate_ids("baton_rolling")
        for sample in samples:
            self.assert_near(sample["resps"][0][0], sample["doc"]["loglikelihood"])

    def test_greedy_texts(self):
        metrics, samples = self.evaluate_ids("baton_questions", add_bos_token=True)
        self.assertEqual([sample["resps"][0][0] for sample in samples],
                         [sample["doc"]["text"] for sample in samples])
        self.assertEqual(metrics["exact_match,none"], 1)

    def test_chats(self):
        metrics, _ = self.evaluate("baton_chat", model="local-chat-completions",
                                   path="chat/completions", batch_size=1)
        self.assertEqual(metrics["exact_match,none"], 1)

    def tearDown(self):
        self.cluster.assert_at_rest()


class Pair(Tasks, unittest.TestCase):
    WORKERS = [("prefill0", "prefill"), ("decode0", "decode")]
    ASKED = {"batch_size": 4, "num_concurrent": 3}


class Mixed(Tasks, unittest.TestCase):
    WORKERS = MIXED
    ASKED = {"batch_size": 1, "num_concurrent": 1}


class Golden(unittest.TestCase):
    def test_it_is_of_this_model(self):
        weights = zlib.crc32((DEMO_MODEL / "model.safetensors").read_bytes())
        self.assertEqual(weights, json.loads(GOLDEN.read_text())["model_crc32"],
                         "make_loglikelihoods.py was not run again")


if __name__ == "__main__":
    unittest.main()
