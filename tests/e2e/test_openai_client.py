"""The official openai Python client against a front end.

It installs the client, pinned by version and sha256 in requirements-openai.txt, into the build folder, once.
Where that cannot be done (no package index, no pip) it says so and is skipped: exit code 77.
"""

import asyncio
import unittest

import client_packages
from cluster import Cluster

client_packages.install("openai")
import openai  # noqa: E402

ASK = [{"role": "user", "content": "What is Baton?"}]


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())
        port = next(iter(cls.cluster.frontends.values()))
        cls.url = f"http://127.0.0.1:{port}/v1"
        cls.client = cls.enterClassContext(
            openai.OpenAI(base_url=cls.url, api_key="any", max_retries=0, timeout=60))

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_chat_choices_and_logprobs(self):
        reply = self.client.chat.completions.create(
            model="demo", messages=ASK, n=2, seed=5, max_completion_tokens=12, logprobs=True,
            top_logprobs=3, presence_penalty=0.5, logit_bias={"300": -100})
        self.assertEqual([choice.index for choice in reply.choices], [0, 1])
        tokens = 0
        for choice in reply.choices:
            content = choice.logprobs.content
            tokens += len(content)
            self.assertEqual("".join(entry.token for entry in content).strip(),
                             choice.message.content.strip())
            self.assertTrue(all(len(entry.top_logprobs) == 3 for entry in content))
            self.assertTrue(all(entry.logprob <= 0 for entry in content))
        self.assertEqual(reply.usage.completion_tokens, tokens)

    def test_streams_are_the_whole_reply(self):
        options = {"model": "demo", "messages": ASK, "seed": 5, "n": 2, "max_tokens": 20}
        whole = self.client.chat.completions.create(**options)
        text, usage = ["", ""], None
        for chunk in self.client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text[choice.index] += choice.delta.content or ""
        self.assertEqual(text, [choice.message.content for choice in whole.choices])
        self.assertEqual(usage, whole.usage)

    def test_completions(self):
        reply = self.client.completions.create(
            model="demo", prompt=["Hello", "What is"], max_tokens=5, logprobs=2, echo=True, seed=1,
            extra_body={"ignore_eos": True, "min_p": 0.02})
        self.assertEqual([choice.index for choice in reply.choices], [0, 1])
        for choice, prompt in zip(reply.choices, ["Hello", "What is"], strict=True):
            self.assertTrue(choice.text.startswith(prompt))
            self.assertIsNone(choice.logprobs.token_logprobs[0])
            self.assertEqual(len(choice.logprobs.tokens), len(choice.logprobs.text_offset))
        pieces = [chunk.choices[0].text for chunk in self.client.completions.create(
            model="demo", prompt="Hello", max_tokens=9, temperature=0, stream=True)]
        whole = self.client.completions.create(model="demo", prompt="Hello", max_tokens=9,
                                               temperature=0)
        self.assertEqual("".join(pieces), whole.choices[0].text)

    def test_many_at_once(self):
        async def ask(client, seed):
            reply = await client.chat.completions.create(model="demo", messages=ASK, seed=seed,
                                                         max_tokens=16)
            return reply.choices[0].message.content

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="any") as client:
                together = await asyncio.gather(*[ask(client, seed) for seed in range(12)])
                return together, [await ask(client, seed) for seed in (0, 7)]

        together, alone = asyncio.run(all_of_them())
        self.assertEqual([together[0], together[7]], alone)

    def test_timeouts_and_cancellation(self):
        long = {"model": "demo", "messages": ASK, "max_tokens": 4000,
                "extra_body": {"ignore_eos": True}}
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.3).chat.completions.create(**long)
        with self.assertRaises(openai.InternalServerError) as caught:
            self.client.chat.completions.create(
                **{**long, "extra_body": {"ignore_eos": True, "timeout_s": 0.3}})
        self.assertEqual(caught.exception.status_code, 504)
        stream = self.client.chat.completions.create(**long, n=2, stream=True)
        next(iter(stream))
        stream.close()

        async def cancel():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="any") as client:
                task = asyncio.ensure_future(client.chat.completions.create(**long))
                await asyncio.sleep(0.3)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(cancel())
        self.cluster.assert_at_rest()  # nothing goes on for nobody

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="demo", messages=ASK, temperature=3)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="other", messages=ASK)
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.InternalServerError) as caught:
            self.client.embeddings.create(model="demo", input="x")
        self.assertEqual(caught.exception.status_code, 501)


if __name__ == "__main__":
    unittest.main()
