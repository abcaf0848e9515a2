"""Hugging Face's own Python client against the dialect tgi, unchanged.

The client is installed once, pinned in requirements-tgi.txt; where it cannot be, the test is skipped.
"""

import unittest

import client_packages
from cluster import Cluster

client_packages.install("tgi")
from huggingface_hub import InferenceClient  # noqa: E402
from huggingface_hub.errors import ValidationError  # noqa: E402

PROMPT = "What is Baton?"


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(frontend={"dialects": "tgi,openai"}))
        port = next(iter(cls.cluster.frontends.values()))
        cls.client = InferenceClient(f"http://127.0.0.1:{port}", timeout=60)

    def ask(self, prompt=PROMPT, **options):
        return self.client.text_generation(prompt, **options)

    def test_a_text(self):
        text = self.ask(max_new_tokens=12)
        self.assertTrue(text.startswith("\nBaton is"), text)
        self.assertEqual(self.ask(max_new_tokens=12, return_full_text=True), PROMPT + text)
        self.assertEqual(self.ask(max_new_tokens=12, stop=["is"]), "\nBaton is")

    def test_details(self):
        reply = self.ask(max_new_tokens=5, details=True, decoder_input_details=True)
        self.assertEqual(reply.generated_text, "".join(t.text for t in reply.details.tokens))
        self.assertEqual(reply.details.finish_reason, "length")
        self.assertEqual(reply.details.generated_tokens, 5)
        self.assertIsNone(reply.details.prefill[0].logprob)
        self.assertTrue(all(t.logprob < 0 for t in reply.details.prefill[1:]))
        self.assertTrue(all(t.logprob < 0 for t in reply.details.tokens))

    def test_a_stream_is_the_text(self):
        whole = self.ask(max_new_tokens=12)
        self.assertEqual("".join(self.ask(max_new_tokens=12, stream=True)), whole)
        events = list(self.ask(max_new_tokens=12, stream=True, details=True))
        self.assertEqual([event.index for event in events], list(range(1, 13)))
        self.assertEqual(events[-1].generated_text, whole)
        self.assertEqual(events[-1].details.finish_reason, "length")
        self.assertTrue(all(event.generated_text is None for event in events[:-1]))

    def test_a_seed_repeats_a_sampled_text(self):
        options = {"max_new_tokens": 24, "do_sample": True, "temperature": 2.0}
        self.assertEqual(self.ask(seed=7, **options), self.ask(seed=7, **options))
        self.assertNotEqual(self.ask(seed=7, **options), self.ask(seed=8, **options))

    def test_a_chat_whatever_the_model_is_called(self):
        messages = [{"role": "user", "content": "What is Baton?"}]
        texts = set()
        for name in (None, "tgi", "dummy"):  # without a name the client calls it something itself
            reply = self.client.chat_completion(messages, model=name, max_tokens=8, temperature=0)
            texts.add(reply.choices[0].message.content)
            events = self.client.chat_completion(messages, model=name, max_tokens=8, temperature=0, stream=True)
            texts.add("".join(event.choices[0].delta.content or "" for event in events if event.choices))
        self.assertEqual(len(texts), 1, texts)

    def test_an_error_is_the_clients_own_exception(self):
        with self.assertRaisesRegex(ValidationError, "this model's context holds"):
            self.ask(max_new_tokens=1_000_000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
