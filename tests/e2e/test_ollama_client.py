"""Ollama's official Python client against a front end.

It installs the client, pinned by version and sha256 in requirements-ollama.txt, as test_openai_client.py does.
"""

import shutil
import typing
import unittest

import client_packages
import folders
from cluster import Cluster

client_packages.install("ollama")
import ollama  # noqa: E402
import pydantic  # noqa: E402

ASK = [{"role": "user", "content": "What is Baton?"}]


class Weather(pydantic.BaseModel):
    """The weather of some days."""

    city: typing.Literal["Paris", "Rome"]
    days: typing.Literal[1, 2]


def client_of(cluster):
    return ollama.Client(host=f"http://127.0.0.1:{next(iter(cluster.frontends.values()))}", timeout=60)


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())
        cls.client = client_of(cls.cluster)
        cls.options = {"num_predict": 20, "temperature": 0}

    def test_models(self):
        listed, = self.client.list().models
        self.assertEqual(listed.model, "demo")
        self.assertRegex(listed.digest, "^[0-9a-f]{64}$")  # the ollama program prints the first 12
        running, = self.client.ps().models
        self.assertEqual(running.digest, listed.digest)
        shown = self.client.show("demo")
        self.assertEqual(shown.capabilities, ["completion"])
        self.assertEqual(shown.modelinfo["baton.context_length"], running.context_length)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.show("other")
        self.assertEqual(caught.exception.status_code, 404)
        self.assertEqual(self.cluster.get("/api/version")[0], 200)

    def test_a_chat_and_its_stream(self):
        whole = self.client.chat("demo:latest", ASK, options=self.options)
        self.assertTrue(whole.message.content)
        chunks = list(self.client.chat("demo", ASK, options=self.options, stream=True))
        self.assertEqual("".join(chunk.message.content for chunk in chunks), whole.message.content)
        last = chunks[-1]
        self.assertEqual([chunk.done for chunk in chunks], [False] * (len(chunks) - 1) + [True])
        self.assertEqual((last.eval_count, last.prompt_eval_count, last.done_reason),
                         (whole.eval_count, whole.prompt_eval_count, whole.done_reason))
        self.assertEqual(last.prompt_eval_duration + last.eval_duration, last.total_duration)

    def test_generate(self):
        whole = self.client.generate("demo", "What is Baton?", options=self.options)
        pieces = self.client.generate("demo", "What is Baton?", options=self.options, stream=True)
        self.assertEqual("".join(piece.response for piece in pieces), whole.response)
        raw = self.client.generate("demo", "Baton is", raw=True, options=self.options)
        self.assertLess(raw.prompt_eval_count, whole.prompt_eval_count)
        word = raw.response.split()[2]
        stopped = self.client.generate("demo", "Baton is", raw=True, options={**self.options, "stop": [word]})
        self.assertEqual(stopped.response, raw.response[:raw.response.index(word)])
        self.assertEqual(self.client.generate("demo").done_reason, "load")
        seeded = {"num_predict": 12, "temperature": 1.5, "seed": 3}
        self.assertEqual(self.client.generate("demo", "x", options=seeded).response,
                         self.client.generate("demo", "x", options=seeded).response)

    def test_structured_output(self):
        options = {"num_predict": 300, "temperature": 0}
        reply = self.client.chat("demo", ASK, format=Weather.model_json_schema(), options=options)
        Weather.model_validate_json(reply.message.content)

    def test_errors(self):
        for status, options in ((404, {"model": "other"}), (400, {"options": {"temperature": -1}})):
            with self.assertRaises(ollama.ResponseError) as caught:
                self.client.chat(**{"model": "demo", "messages": ASK, **options})
            self.assertEqual(caught.exception.status_code, status)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.embed("demo", "x")
        self.assertIn("model_task: generate", caught.exception.error)

    def tearDown(self):
        self.cluster.assert_at_rest()


class Tools(unittest.TestCase):
    def test_tools_reach_the_template(self):
        folder = folders.templated_model(folders.CALLING_TEMPLATE)
        self.addCleanup(shutil.rmtree, folder)

        def weather(city: str) -> str:
            """The weather.

            Args:
                city: where
            """
            return city

        with Cluster(model=folder) as cluster:
            client, options = client_of(cluster), {"num_predict": 5, "temperature": 0}
            self.assertIn("tools", client.show("demo").capabilities)
            bare = client.chat("demo", ASK, options=options).prompt_eval_count
            with_tools = client.chat("demo", ASK, tools=[weather], options=options).prompt_eval_count
            self.assertGreater(with_tools, bare + 20)
            call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
            history = [*ASK, {"role": "assistant", "content": "", "tool_calls": [call]},
                       {"role": "tool", "content": "sunny", "tool_name": "weather"}]
            reply = client.chat("demo", history, tools=[weather], options=options)
            self.assertGreater(reply.prompt_eval_count, with_tools)


if __name__ == "__main__":
    unittest.main()
