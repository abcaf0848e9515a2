"""What the tests of agents share: Baton with a model that says what it is told (scripted_model.py), and a task of three calls.

Each test_*.py beside this file runs one client from PyPI, unchanged and pinned (tests/e2e/requirements-CLIENT.txt). The result
of each call is the script of what the model says next, so that a client which loses, changes or repeats a result does not arrive at
the answer.
"""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import folders  # noqa: E402
import scripted_model  # noqa: E402
from cluster import BUILD, MIXED, Cluster  # noqa: E402

MARKS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# Qwen 2.5's, as it is published.
TEMPLATE = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
KEYS = ["alpha", "grüße \"b\"\n\t\\", "γ 🚀"]
ANSWER = "The values are 1, 2 and 3: 6 in all. Grüße!"
REFUSAL = "I'm sorry, I cannot help with that."
CITY = {"city": "Zürich", "people": 443037, "coast": False}


def call(name, arguments):
    """A call as the model writes it."""
    said = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{said}\n</tool_call>"


def environment(home, client, **more):
    """For a client that runs as a process of its own."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "ANTHROPIC"))},
            "PYTHONPATH": str(BUILD / f"{client}-client"), "HOME": str(home), **more}


class Task:
    """Three values to look up, one after the other, with the tool look_up(key)."""

    def __init__(self, script, before=("", "", ""), tool="look_up", answer=ANSWER):
        said = [text + call(tool, {"key": key}) for text, key in zip(before, KEYS)] + [answer]
        self.asked = []
        first, *self.results = [script.anywhere(text) for text in said]
        self.prompt = f"Please add up the values. {first}"

    def look_up(self, key):
        self.asked.append(key)
        return f"The value is {len(self.asked)}. " + self.results[KEYS.index(key)]


class AgentCase(unittest.TestCase):
    """One Baton for the whole class: .url, and .script to write what its model says."""

    worker = {}
    context, distance = 49152, scripted_model.DISTANCE

    @classmethod
    def setUpClass(cls):
        # No client of these may write into, or read from, the home of who runs the tests.
        home = tempfile.mkdtemp(prefix="baton-agents-")
        cls.addClassCleanup(folders.remove, home)
        cls.home = pathlib.Path(home)
        model = cls.home / "model"
        cls.script = scripted_model.write(model, TEMPLATE, MARKS, context=cls.context, distance=cls.distance)
        cls.cluster = cls.enterClassContext(Cluster(workers=MIXED, model=model, worker=cls.worker))
        cls.port = next(iter(cls.cluster.frontends.values()))
        cls.url = f"http://127.0.0.1:{cls.port}"

    def task(self, **options):
        return Task(self.script, **options)

    def says(self, text):
        """A question that is answered with the text."""
        return f"Tell me. {self.script.anywhere(text)}"

    def says_json(self, value):
        return self.says(json.dumps(value, ensure_ascii=False))

    def assert_done(self, task, answer):
        self.assertEqual(task.asked, KEYS)
        self.assertEqual(answer, ANSWER)

    def tearDown(self):
        self.cluster.assert_at_rest()
