"""Anthropic's official Python client against a front end.

It installs the client, pinned by version and sha256 in requirements-anthropic.txt, as test_openai_client.py does.
"""

import os
import pathlib
import shutil
import tempfile
import threading
import time
import typing
import unittest

import client_packages
import folders
from cluster import Cluster

client_packages.install("anthropic")
import anthropic  # noqa: E402
import pydantic  # noqa: E402

ASK = [{"role": "user", "content": "What is Baton?"}]
GREEDY = {"temperature": 0}  # the newest client has no word for it
KEY = "sk-0123456789abcdef"


class Weather(pydantic.BaseModel):
    """The weather of some days."""

    city: typing.Literal["Paris", "Rome"]
    days: typing.Literal[1, 2]


TOOL = {"name": "weather", "description": "The weather", "input_schema": Weather.model_json_schema()}


def client_of(cluster, key="any", **options):
    port = next(iter(cluster.frontends.values()))
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key=key, max_retries=0, timeout=60,
                               **options)


class Client(unittest.TestCase):
    """The demo model as it ships: no template, so no tools."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())
        cls.client = cls.enterClassContext(client_of(cls.cluster))
        cls.ask = {"model": "demo", "messages": ASK, "max_tokens": 30, "extra_body": GREEDY}

    def test_a_message_and_its_stream(self):
        whole = self.client.messages.create(**self.ask, system="You are brief.")
        self.assertEqual((whole.type, whole.role, whole.model), ("message", "assistant", "demo"))
        self.assertIn(whole.stop_reason, ("end_turn", "max_tokens"))
        self.assertTrue(whole.content[0].text)
        with self.client.messages.stream(**self.ask, system="You are brief.") as stream:
            kinds = [event.type for event in stream]
            told = stream.get_final_message()
        self.assertEqual(told.content[0].text, whole.content[0].text)
        self.assertEqual(told.usage, whole.usage)
        self.assertEqual(told.stop_reason, whole.stop_reason)
        self.assertEqual(kinds[0], "message_start")
        self.assertEqual(kinds[-1], "message_stop")

    def test_the_events_as_they_are(self):
        events = [event.type for event in self.client.messages.create(**self.ask, stream=True)]
        deltas = events.count("content_block_delta")
        self.assertGreater(deltas, 3)
        self.assertEqual(events, ["message_start", "content_block_start", *["content_block_delta"] * deltas,
                                  "content_block_stop", "message_delta", "message_stop"])

    def test_stop_sequences(self):
        text = self.client.messages.create(**self.ask).content[0].text
        word = text.split()[2]
        reply = self.client.messages.create(**self.ask, stop_sequences=["never said", word])
        self.assertEqual((reply.stop_reason, reply.stop_sequence), ("stop_sequence", word))
        self.assertEqual(reply.content[0].text, text[:text.index(word)])
        short = self.client.messages.create(**{**self.ask, "max_tokens": 2})
        self.assertEqual((short.stop_reason, short.usage.output_tokens), ("max_tokens", 2))

    def test_counting_tokens(self):
        asked = {"model": "demo", "system": [{"type": "text", "text": "You are brief."}],
                 "messages": [*ASK, {"role": "assistant", "content": "A server."}, *ASK]}
        counted = self.client.messages.count_tokens(**asked).input_tokens
        reply = self.client.messages.create(**asked, max_tokens=1)
        self.assertEqual(counted, reply.usage.input_tokens)
        self.assertEqual(self.client.messages.create(**asked, max_tokens=1).usage.input_tokens, counted)

    def test_structured_output(self):
        reply = self.client.messages.parse(model="demo", messages=ASK, max_tokens=300, output_format=Weather)
        self.assertIsInstance(reply.parsed_output, Weather)

    def test_errors_are_the_clients_exceptions(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.client.messages.create(**{**self.ask, "extra_body": {"temperature": 3}})
        self.assertEqual(caught.exception.type, "invalid_request_error")
        self.assertIn("temperature", caught.exception.api_message)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.client.messages.create(model="demo", max_tokens=5, messages=[{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}]}])
        self.assertIn("only text", caught.exception.api_message)
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.client.messages.create(**{**self.ask, "model": "other"})
        self.assertEqual(caught.exception.type, "not_found_error")
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(**self.ask, tools=[TOOL])
        with self.assertRaises(anthropic.APIStatusError) as caught:
            self.client.messages.create(**{**self.ask, "max_tokens": 4000, "extra_body": {
                "min_tokens": 4000, "timeout_s": 0.3}})
        self.assertEqual(caught.exception.status_code, 504)

    def test_more_than_the_context_leaves(self):
        with self.client.messages.stream(**{**self.ask, "max_tokens": 64000}) as stream:
            next(iter(stream.text_stream))  # agents ask so; it is no error

    def tearDown(self):
        self.cluster.assert_at_rest()


class Keys(unittest.TestCase):
    def test_both_headers(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder) / "keys"
            keys.write_text(KEY + " name=alice\n")
            os.chmod(keys, 0o600)
            with Cluster(frontend={"api_keys": str(keys)}) as cluster:
                ask = {"model": "demo", "messages": ASK, "max_tokens": 2}
                client_of(cluster, KEY).messages.create(**ask)  # x-api-key
                client_of(cluster, None, auth_token=KEY).messages.create(**ask)  # Authorization
                with self.assertRaises(anthropic.AuthenticationError) as caught:
                    client_of(cluster, "wrong").messages.create(**ask)
                self.assertEqual(caught.exception.type, "authentication_error")


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = folders.templated_model(folders.CALLING_TEMPLATE)
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.cluster = cls.enterClassContext(Cluster(model=folder))
        cls.client = cls.enterClassContext(client_of(cls.cluster))
        cls.forced = {"model": "demo", "messages": ASK, "max_tokens": 400, "tools": [TOOL], "extra_body": GREEDY,
                      "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}

    def test_a_call_and_its_result(self):
        for choice in (self.forced["tool_choice"], {"type": "tool", "name": "weather"}):
            reply = self.client.messages.create(**{**self.forced, "tool_choice": choice})
            call, = reply.content
            self.assertEqual((reply.stop_reason, call.type, call.name), ("tool_use", "tool_use", "weather"))
            Weather.model_validate(call.input)
        history = [*ASK, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
        asked = {"model": "demo", "messages": history, "tools": [TOOL]}
        answer = self.client.messages.create(**asked, max_tokens=5, extra_body=GREEDY)
        self.assertTrue(answer.content[0].text)
        self.assertEqual(self.client.messages.count_tokens(**asked).input_tokens, answer.usage.input_tokens)

    def test_a_streamed_call_is_the_whole_one(self):
        whole = self.client.messages.create(**self.forced)
        with self.client.messages.stream(**self.forced) as stream:
            kinds = {event.type for event in stream}
            told = stream.get_final_message()
        self.assertIn("input_json", kinds)
        self.assertEqual(told.content[0].input, whole.content[0].input)
        self.assertEqual((told.stop_reason, told.usage), (whole.stop_reason, whole.usage))
        counted = self.client.messages.count_tokens(
            model="demo", messages=ASK, tools=[TOOL], tool_choice=self.forced["tool_choice"])
        self.assertEqual(counted.input_tokens, whole.usage.input_tokens)

    def test_the_clients_own_loop(self):
        """What an agent does: the client runs the tool and sends what it says."""
        asked = []

        @anthropic.beta_tool
        def weather(city: typing.Literal["Rome", "Paris"]) -> str:
            """The weather.

            Args:
                city: where
            """
            asked.append(city)
            return "sunny"

        runner = self.client.beta.messages.tool_runner(
            model="demo", max_tokens=100, messages=ASK, tools=[weather], extra_body=GREEDY, max_iterations=2,
            tool_choice={"type": "any", "disable_parallel_tool_use": True})
        for _ in runner:
            pass
        self.assertTrue(asked)
        self.assertLessEqual(set(asked), {"Rome", "Paris"})

    def test_prefill(self):
        reply = self.client.messages.create(
            model="demo", max_tokens=5, extra_body=GREEDY,
            messages=[*ASK, {"role": "assistant", "content": "Baton is a"}])
        self.assertTrue(reply.content)

    def tearDown(self):
        self.cluster.assert_at_rest()


class Successor(unittest.TestCase):
    def test_a_stream_goes_on_beyond_its_front_ends_death(self):
        with Cluster(worker={"pool_mib": 128, "step_delay_ms": 8}) as cluster, client_of(cluster) as client:
            ask = {"model": "demo", "messages": ASK, "max_tokens": 120,
                   "extra_body": {**GREEDY, "min_tokens": 120}}
            truth = client.messages.create(**ask)
            told = []

            def listen():
                with client.messages.stream(**ask) as stream:
                    kinds = [event.type for event in stream]
                    told.append((kinds, stream.get_final_message()))

            listeners = [threading.Thread(target=listen) for _ in range(4)]
            for listener in listeners:
                listener.start()
            for _ in range(3):
                time.sleep(0.25)
                cluster.kill("frontend0")
                cluster.start("frontend0")
            for listener in listeners:
                listener.join(60)
            self.assertEqual(len(told), 4)
            for kinds, message in told:
                self.assertEqual(kinds.count("message_start"), 1)
                self.assertEqual(kinds[-1], "message_stop")
                self.assertEqual(message.content[0].text, truth.content[0].text)
                self.assertEqual(message.usage.output_tokens, 120)
            cluster.assert_at_rest()


if __name__ == "__main__":
    unittest.main()
