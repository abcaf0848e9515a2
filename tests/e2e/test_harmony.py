#!/usr/bin/env python3
"""gpt-oss's format (harmony) through the front end's APIs. The demo model does not speak it, so grammars make it: a
forced call, whose header the prompt begins, and an answer that is held to a schema in its final message."""

import http.client
import json
import pathlib
import tempfile
import unittest

from cluster import MIXED, Cluster

TEMPLATE = """{# <|channel|> tools reasoning_effort #}{% for m in messages -%}
<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Bergen"]}, "days": {"type": "integer", "minimum": 1,
                                                                                         "maximum": 9}},
          "required": ["city", "days"], "additionalProperties": False}
ASK = {"model": "demo", "messages": [{"role": "user", "content": "Weather?"}], "temperature": 1.0, "seed": 5,
       "max_tokens": 300}
FUNCTION = {"name": "weather", "description": "Of a place.", "parameters": SCHEMA}
NAMED = {"type": "function", "function": {"name": "weather"}}


def chunks(cluster, body):
    """The deltas of a streamed chat."""
    connection = http.client.HTTPConnection(cluster.address, next(iter(cluster.frontends.values())), timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}),
                       {"Content-Type": "application/json"})
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


class Harmony(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        template = pathlib.Path(cls.folder.name) / "chat_template.jinja"
        template.write_text(TEMPLATE)
        cls.cluster = Cluster(workers=MIXED, frontend={"chat_template": str(template)})
        cls.cluster.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)
        cls.folder.cleanup()

    def check_arguments(self, text):
        arguments = json.loads(text)
        self.assertEqual({"city", "days"}, set(arguments))
        self.assertIn(arguments["city"], ("Oslo", "Bergen"))

    def test_a_forced_call(self):
        body = {**ASK, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": NAMED}
        status, reply = self.cluster.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, reply)
        message = reply["choices"][0]["message"]
        self.assertEqual(message["tool_calls"][0]["function"]["name"], "weather")
        self.check_arguments(message["tool_calls"][0]["function"]["arguments"])
        self.assertFalse(message["content"])
        streamed = ""
        for chunk in chunks(self.cluster, body):
            for choice in chunk["choices"]:
                for call in choice["delta"].get("tool_calls", []):
                    streamed += call["function"].get("arguments", "")
        self.assertEqual(streamed, message["tool_calls"][0]["function"]["arguments"])

    def test_one_of_several_cannot_be_forced_without_its_name(self):
        other = {"type": "function", "function": {"name": "clock"}}
        status, reply = self.cluster.post("/v1/chat/completions", {
            **ASK, "tools": [{"type": "function", "function": FUNCTION}, other], "tool_choice": "required"})
        self.assertEqual(status, 400)
        self.assertIn("name it", reply["error"]["message"])

    def test_a_grammar_is_about_the_final_message(self):
        body = {**ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}}
        status, reply = self.cluster.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, reply)
        message = reply["choices"][0]["message"]
        self.check_arguments(message["content"])
        self.assertIsNone(message.get("reasoning_content"))

    def test_anthropics_shape_and_the_responses(self):
        status, reply = self.cluster.post("/v1/messages", {
            **ASK, "tools": [{"name": "weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "weather"}})
        self.assertEqual(status, 200, reply)
        self.assertEqual([block["type"] for block in reply["content"]], ["tool_use"])
        self.assertEqual(set(reply["content"][0]["input"]), {"city", "days"})
        status, reply = self.cluster.post("/v1/responses", {
            "model": "demo", "input": "Weather?", "max_output_tokens": 300, "temperature": 1.0,
            "tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": "weather"}})
        self.assertEqual(status, 200, reply)
        calls = [item for item in reply["output"] if item["type"] == "function_call"]
        self.assertEqual([call["name"] for call in calls], ["weather"])
        self.check_arguments(calls[0]["arguments"])

    def test_a_reply_that_does_not_speak_it_is_content(self):
        status, reply = self.cluster.post("/v1/chat/completions", {**ASK, "max_tokens": 20})
        self.assertEqual(status, 200, reply)
        self.assertTrue(reply["choices"][0]["message"]["content"])


if __name__ == "__main__":
    unittest.main()
