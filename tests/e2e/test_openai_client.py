"""The official openai Python client against a front end.

It installs the client, pinned by version and sha256 in requirements-openai.txt, into the build folder, once.
Where that cannot be done (no package index, no pip) it says so and is skipped: exit code 77.
"""

import asyncio
import json
import shutil
import typing
import unittest

import client_packages
import folders
from cluster import MIXED, SOURCE, Cluster

client_packages.install("openai")
import openai  # noqa: E402
import pydantic  # noqa: E402

ASK = [{"role": "user", "content": "What is Baton?"}]


class Weather(pydantic.BaseModel):
    """The weather of some days."""

    city: typing.Literal["Paris", "Rome"]
    days: typing.Literal[1, 2]


class Embeddings(unittest.TestCase):
    def test_vectors(self):
        """The client asks for base64 unless it is told otherwise, and unpacks it."""
        golden = json.loads((SOURCE / "tests" / "golden" / "pooling.json").read_text())["embeddings"][:3]
        with Cluster(workers=MIXED, model=SOURCE / "tests" / "golden" / "models" / "qwen3_embedding") as cluster:
            url = f"http://127.0.0.1:{next(iter(cluster.frontends.values()))}/v1"
            with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=60) as client:
                for options in ({}, {"encoding_format": "float"}):
                    reply = client.embeddings.create(model="demo", input=[one["text"] for one in golden], **options)
                    self.assertEqual(reply.usage.prompt_tokens, sum(len(one["ids"]) for one in golden))
                    for entry, one in zip(reply.data, golden):
                        self.assertLess(max(abs(a - b) for a, b in zip(entry.embedding, one["vector"])), 5e-4)
                short = client.embeddings.create(model="demo", input="Hello", dimensions=8)
                self.assertEqual(len(short.data[0].embedding), 8)
                with self.assertRaises(openai.BadRequestError):
                    client.completions.create(model="demo", prompt="Hello")


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
        self.assertRegex(reply.system_fingerprint, r"^baton-\d+\.\d+\.\d+")

    def test_streams_are_the_whole_reply(self):
        options = {"model": "demo", "messages": ASK, "seed": 5, "n": 2, "max_tokens": 20}
        whole = self.client.chat.completions.create(**options)
        text, usage, heads = ["", ""], None, set()
        for chunk in self.client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            heads.add((chunk.id, chunk.created, chunk.model, chunk.system_fingerprint))
            for choice in chunk.choices:
                text[choice.index] += choice.delta.content or ""
        self.assertEqual(text, [choice.message.content for choice in whole.choices])
        self.assertEqual(usage, whole.usage)
        self.assertEqual(len(heads), 1)
        self.assertEqual({head[2:] for head in heads}, {("demo", whole.system_fingerprint)})

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
        # The client asks again after a 500, but not where it is told that this is of no use.
        before = self.replies_with(504)
        with self.assertRaises(openai.InternalServerError):
            self.client.with_options(max_retries=2).chat.completions.create(
                **{**long, "extra_body": {"ignore_eos": True, "timeout_s": 0.3}})
        self.assertEqual(self.replies_with(504), before + 1)
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

    def replies_with(self, status):
        _, text = self.cluster.get("/metrics")
        return sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith("baton_http_replies_total{") and f'"{status}"' in line)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="demo", messages=ASK, temperature=3)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="other", messages=ASK)
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.embeddings.create(model="demo", input="x")
        self.assertEqual(caught.exception.code, "wrong_task")


class Tools(unittest.TestCase):
    """Calls and structured output, read by the client's own helpers."""

    MODEL = "acme/demo"

    @classmethod
    def setUpClass(cls):
        folder = folders.templated_model(folders.CALLING_TEMPLATE)
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.cluster = cls.enterClassContext(Cluster(model=folder, top={"model_name": cls.MODEL}))
        port = next(iter(cls.cluster.frontends.values()))
        cls.client = cls.enterClassContext(openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0, timeout=60))
        cls.chats = cls.client.chat.completions
        cls.forced = {"model": cls.MODEL, "messages": ASK, "seed": 1, "max_tokens": 400,
                      "tools": [openai.pydantic_function_tool(Weather)], "tool_choice": "required",
                      "parallel_tool_calls": False}

    def test_a_name_with_a_slash(self):
        self.assertEqual([model.id for model in self.client.models.list()], [self.MODEL])
        self.assertEqual(self.client.models.retrieve(self.MODEL).id, self.MODEL)  # sent as %2F
        self.assertEqual(self.cluster.get(f"/v1/models/{self.MODEL}")[0], 200)

    def test_a_call_and_its_answer(self):
        choice, = self.chats.parse(**self.forced).choices
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        call, = choice.message.tool_calls
        self.assertIsInstance(call.function.parsed_arguments, Weather)
        answer = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        for message in (choice.message, choice.message.model_dump(), choice.message.to_dict()):
            reply = self.chats.create(model=self.MODEL, messages=[*ASK, message, answer],
                                      tools=self.forced["tools"], max_tokens=5, temperature=0)
            self.assertTrue(reply.choices[0].message.content)

    def test_a_streamed_call_is_the_whole_one(self):
        whole = self.chats.create(**self.forced).choices[0]
        with self.chats.stream(**self.forced, stream_options={"include_usage": True}) as stream:
            kinds = {event.type for event in stream}
            told = stream.get_final_completion()
        self.assertLessEqual({"tool_calls.function.arguments.delta",
                              "tool_calls.function.arguments.done"}, kinds)
        self.assertEqual(told.choices[0].finish_reason, whole.finish_reason)
        self.assertEqual([call.function.arguments for call in told.choices[0].message.tool_calls],
                         [call.function.arguments for call in whole.message.tool_calls])
        self.assertGreater(told.usage.completion_tokens, 10)

    def test_a_format_of_its_own(self):
        options = {"model": self.MODEL, "messages": ASK, "seed": 1, "max_tokens": 300,
                   "response_format": Weather}
        whole = self.chats.parse(**options).choices[0].message.parsed
        self.assertIsInstance(whole, Weather)
        with self.chats.stream(**options, logprobs=True, top_logprobs=1) as stream:
            told = stream.get_final_completion().choices[0]
        self.assertEqual(told.message.parsed, whole)
        self.assertEqual("".join(entry.token for entry in told.logprobs.content[:-1]),
                         told.message.content)
        with self.assertRaises(openai.LengthFinishReasonError):
            self.chats.parse(**{**options, "max_tokens": 2})

    def tearDown(self):
        self.cluster.assert_at_rest()


class Responses(unittest.TestCase):
    """/v1/responses, read by the client's own helpers."""

    @classmethod
    def setUpClass(cls):
        folder = folders.templated_model(folders.CALLING_TEMPLATE)
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.cluster = cls.enterClassContext(Cluster(model=folder))
        port = next(iter(cls.cluster.frontends.values()))
        cls.client = cls.enterClassContext(openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0, timeout=60))
        cls.ask = {"model": "demo", "input": "What is Baton?", "max_output_tokens": 40, "temperature": 0}
        cls.forced = {**cls.ask, "max_output_tokens": 400, "tool_choice": "required",
                      "parallel_tool_calls": False, "tools": [{
                          "type": "function", "name": "Weather", "strict": True,
                          "parameters": Weather.model_json_schema()}]}

    def test_a_response_and_its_stream(self):
        whole = self.client.responses.create(**self.ask, instructions="You are brief.")
        self.assertTrue(whole.output_text)
        self.assertEqual((whole.store, whole.instructions), (False, "You are brief."))
        with self.client.responses.stream(**self.ask, instructions="You are brief.") as stream:
            events = list(stream)
        told = events[-1].response
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        deltas = [event.type for event in events].count("response.output_text.delta")
        end = "response.completed" if whole.status == "completed" else "response.incomplete"
        self.assertEqual([event.type for event in events], [
            "response.created", "response.in_progress", "response.output_item.added",
            "response.content_part.added", *["response.output_text.delta"] * deltas,
            "response.output_text.done", "response.content_part.done", "response.output_item.done", end])
        self.assertEqual((told.output_text, told.status, told.usage),
                         (whole.output_text, whole.status, whole.usage.model_copy(update={
                             "input_tokens_details": told.usage.input_tokens_details})))

    def test_what_is_cut_off_is_incomplete(self):
        reply = self.client.responses.create(**{**self.ask, "max_output_tokens": 2})
        self.assertEqual((reply.status, reply.incomplete_details.reason, reply.usage.output_tokens),
                         ("incomplete", "max_output_tokens", 2))

    def test_a_call_and_its_answer(self):
        reply = self.client.responses.create(**self.forced)
        call, = reply.output
        self.assertEqual((call.type, call.name), ("function_call", "Weather"))
        Weather.model_validate_json(call.arguments)
        history = [{"role": "user", "content": "What is Baton?"}, *reply.output,
                   {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        answer = self.client.responses.create(**{**self.ask, "input": history}, tools=self.forced["tools"])
        self.assertTrue(answer.output_text)
        with self.client.responses.stream(**self.forced) as stream:
            kinds = [event.type for event in stream]
            told, = stream.get_final_response().output
        self.assertEqual(told.arguments, call.arguments)
        self.assertEqual(kinds[-3:], ["response.function_call_arguments.done",
                                      "response.output_item.done", "response.completed"])

    def test_structured_output(self):
        reply = self.client.responses.parse(**{**self.ask, "max_output_tokens": 300}, text_format=Weather)
        self.assertIsInstance(reply.output_parsed, Weather)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.create(**self.ask, previous_response_id="resp_1")
        self.assertEqual(caught.exception.param, "previous_response_id")
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(**{**self.ask, "model": "other"})

    def tearDown(self):
        self.cluster.assert_at_rest()


if __name__ == "__main__":
    unittest.main()
