"""litellm's proxy in front of Baton: its three APIs (chat completions, responses, messages), each to four of Baton's.

The proxy knows Baton as an OpenAI server, a vLLM, an Anthropic and an Ollama, and turns whichever API a client speaks into that.
"""

import http.client
import itertools
import json
import subprocess
import sys
import unittest

import agent_case
import client_packages
from cluster import free_port, wait_until

client_packages.install("litellm")
import openai  # noqa: E402

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}, "coast": {"type": "boolean"}},
          "required": ["city", "people", "coast"], "additionalProperties": False}
FUNCTION = {"name": "look_up", "description": "The value of a key.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}}


KEY = "sk-of-a-test-0123456789abcdefghij"


class Chat:
    """A client of /v1/chat/completions. ask() gives the text, the calls and what continues the conversation."""

    tools = [{"type": "function", "function": FUNCTION}]
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}}

    def __init__(self, proxy):
        self.client = proxy.client

    def user(self, text):
        return [{"role": "user", "content": text}]

    def ask(self, model, messages, stream, **options):
        with self.client.chat.completions.stream(model=model, messages=messages, max_tokens=1000, **options) if stream else _whole(
                self.client.chat.completions.create(model=model, messages=messages, max_tokens=1000, **options)) as reply:
            message = reply.get_final_completion().choices[0].message
        calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
        kept = {"role": "assistant", "content": message.content}
        if calls:
            kept["tool_calls"] = [{"id": call.id, "type": "function", "function": {
                "name": call.function.name, "arguments": call.function.arguments}} for call in message.tool_calls]
        return message.content or "", calls, [*messages, kept]

    def result(self, identifier, text):
        return {"role": "tool", "tool_call_id": identifier, "content": text}


class _whole:
    def __init__(self, reply):
        self.reply = reply

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def get_final_completion(self):
        return self.reply

    get_final_response = get_final_completion


class Responses:
    tools = [{"type": "function", **FUNCTION}]
    schema = {"text": {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": SCHEMA}}}

    def __init__(self, proxy):
        self.client = proxy.client

    def user(self, text):
        return [{"role": "user", "content": text}]

    def ask(self, model, items, stream, **options):
        options = {"model": model, "input": items, "max_output_tokens": 1000, **options}
        if stream:
            for event in self.client.responses.create(stream=True, **options):
                reply = getattr(event, "response", None)
            assert reply is not None and event.type == "response.completed", event
        else:
            reply = self.client.responses.create(**options)
        calls = [(item.call_id, item.name, json.loads(item.arguments)) for item in reply.output if item.type == "function_call"]
        return reply.output_text, calls, [*items, *(item.model_dump(exclude_none=True) for item in reply.output)]

    def result(self, identifier, text):
        return {"type": "function_call_output", "call_id": identifier, "output": text}


class Messages:
    tools = [{"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}]
    schema = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}

    def __init__(self, proxy):
        self.port = proxy.port

    def user(self, text):
        return [{"role": "user", "content": text}]

    def ask(self, model, messages, stream, **options):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/messages", json.dumps(
            {"model": model, "messages": messages, "max_tokens": 1000, "stream": stream, **options}),
            {"Content-Type": "application/json", "x-api-key": KEY, "anthropic-version": "2023-06-01"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status == 200, text
        content = self.assembled(text) if stream else json.loads(text)["content"]
        calls = [(block["id"], block["name"], block["input"]) for block in content if block["type"] == "tool_use"]
        said = "".join(block["text"] for block in content if block["type"] == "text")
        return said, calls, [*messages, {"role": "assistant", "content": content}]

    @staticmethod
    def assembled(text):
        blocks = {}
        for line in text.splitlines():
            event = json.loads(line[6:]) if line.startswith("data: {") else {"type": ""}
            if event["type"] == "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            elif event["type"] == "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                block["text"] = block.get("text", "") + delta.get("text", "")
                block["json"] += delta.get("partial_json", "")
        kinds = {"text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
        for block in blocks.values():
            if block["type"] == "tool_use" and block["json"]:
                block["input"] = json.loads(block["json"])
        return [{name: block[name] for name in kinds[block["type"]]} for block in blocks.values()
                if block["type"] == "tool_use" or block["text"]]

    def result(self, identifier, text):
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": identifier, "content": text}]}


class LiteLLM(agent_case.AgentCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        backends = {"as-openai": ("openai/demo", cls.url + "/v1"), "as-vllm": ("hosted_vllm/demo", cls.url + "/v1"),
                    "as-anthropic": ("anthropic/demo", cls.url), "as-ollama": ("ollama_chat/demo", cls.url)}
        cls.backends = list(backends)
        config = cls.home / "litellm.yaml"
        config.write_text(json.dumps({"model_list": [  # JSON is YAML
            {"model_name": name, "litellm_params": {"model": model, "api_base": base, "api_key": "any"}}
            for name, (model, base) in backends.items()]}))
        cls.proxy_port = free_port()
        log = cls.enterClassContext(open(cls.home / "litellm.log", "w+"))
        proxy = subprocess.Popen(
            [sys.executable, "-m", "litellm.proxy.proxy_cli", "--config", config, "--host", "127.0.0.1", "--port", str(cls.proxy_port)],
            env=client_environment(cls), stdout=log, stderr=log, cwd=cls.home)
        cls.addClassCleanup(proxy.wait)
        cls.addClassCleanup(proxy.terminate)

        def ready():
            assert proxy.poll() is None, (cls.home / "litellm.log").read_text()
            connection = http.client.HTTPConnection("127.0.0.1", cls.proxy_port, timeout=5)
            try:
                connection.request("GET", "/health/liveliness")
                return connection.getresponse().status == 200
            except OSError:
                return False
            finally:
                connection.close()
        wait_until(ready, 120, "the proxy")
        cls.client = cls.enterClassContext(openai.OpenAI(
            base_url=f"http://127.0.0.1:{cls.proxy_port}/v1", api_key=KEY, max_retries=0, timeout=60))

    def tries(self):
        class Proxy:
            client, port = self.client, self.proxy_port
        for api, model, stream in itertools.product((Chat, Responses, Messages), self.backends, (False, True)):
            yield f"{api.__name__} {model} {'stream' if stream else 'whole'}", api(Proxy), model, stream

    def test_a_loop_of_three_calls(self):
        for name, api, model, stream in self.tries():
            with self.subTest(name):
                task = self.task()
                said, calls, history = api.ask(model, api.user(task.prompt), stream, tools=api.tools)
                for _ in range(3):
                    (identifier, function, arguments), = calls
                    self.assertEqual(function, "look_up")
                    history = [*history, api.result(identifier, task.look_up(arguments["key"]))]
                    said, calls, history = api.ask(model, history, stream, tools=api.tools)
                self.assertEqual(calls, [])
                self.assert_done(task, said)

    def test_a_structured_answer(self):
        for name, api, model, stream in self.tries():
            with self.subTest(name):
                prompt = self.says_json(agent_case.CITY)
                if model == "as-anthropic" and not isinstance(api, Messages):  # a call that the proxy forces and turns into text
                    prompt = self.says(agent_case.call("json_tool_call", agent_case.CITY))
                said, _, _ = api.ask(model, api.user(prompt), stream, **api.schema)
                self.assertEqual(json.loads(said), agent_case.CITY)

    def test_a_refusal(self):
        for name, api, model, stream in self.tries():
            with self.subTest(name):
                said, calls, _ = api.ask(model, api.user(self.says(agent_case.REFUSAL)), stream, tools=api.tools)
                self.assertEqual((said, calls), (agent_case.REFUSAL, []))


def client_environment(case):
    return agent_case.environment(case.home, "litellm", LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_MASTER_KEY=KEY)


if __name__ == "__main__":
    unittest.main()
