"""A GGUF file is served like the folder that it was made from."""

import json
import pathlib
import unittest

import folders
import gguf_file
from cluster import DEMO_MODEL, DEVICE, MIXED, Cluster

MESSAGES = [{"role": "user", "content": "Who are you, and what can you do? <|end|> é 中"}]


class GgufTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(folders.temporary(self, "baton-gguf-"))

    def answers(self, model, **worker):
        """A chat, a text with its probabilities, and the tokens of a text."""
        with Cluster(MIXED, model=model, worker=worker) as cluster:
            def post(path, body):
                status, reply = cluster.post(path, body)
                self.assertEqual(200, status, reply)
                return json.loads(reply) if isinstance(reply, (str, bytes)) else reply
            chat = post("/v1/chat/completions", {"model": "demo", "messages": MESSAGES, "max_tokens": 24,
                                                 "temperature": 0})
            text = post("/v1/completions", {"model": "demo", "prompt": "The  harbour was\n", "max_tokens": 24,
                                            "temperature": 0, "logprobs": 3})
            cluster.assert_at_rest()
            self.setup = cluster.ctl("show setup")
        return (chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"],
                text["choices"][0]["text"], text["choices"][0]["logprobs"])

    def test_the_same_bits_as_its_folder(self):
        # The folder's chat_format.json says more than a GGUF file can.
        model = self.folder / "model"
        model.mkdir()
        for file in DEMO_MODEL.iterdir():
            if file.name != "chat_format.json":
                (model / file.name).symlink_to(file)
        self.assertEqual(self.answers(model), self.answers(gguf_file.write(self.folder / "demo.gguf")))
        self.assertNotIn("activations", self.setup, "bf16: nothing is rounded")

    def test_quantised_weights_are_served(self):
        file = gguf_file.write(self.folder / "demo-q8.gguf", gguf_file.Q8_0)
        alone = self.answers(file)
        _, _, text, probabilities = alone
        self.assertTrue(text)
        self.assertEqual(24, len(probabilities["tokens"]))
        if DEVICE == "cpu":
            self.assertRegex(self.setup, r"weights +.*activations int8.*--worker.dtype, --worker.activations")
            self.assertEqual(alone, self.answers(file, activations="int8"), "what auto takes for integers")
            self.assertEqual(alone, self.answers(file, ranks=2))
            exact = self.answers(file, activations="exact")
            self.assertIn("activations exact", self.setup)
            self.assertNotEqual(alone[3], exact[3], "rounding moves log probabilities")
            self.assertEqual(exact, self.answers(file, deterministic=True))


if __name__ == "__main__":
    unittest.main()
