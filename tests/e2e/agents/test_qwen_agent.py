"""Qwen-Agent: with calls that it writes and reads itself, and with the server's; over chat completions, which it streams."""

import json
import unittest

import agent_case
import client_packages

client_packages.install("qwen_agent")
from qwen_agent.agents import Assistant  # noqa: E402
from qwen_agent.llm import get_chat_model  # noqa: E402
from qwen_agent.tools.base import BaseTool  # noqa: E402


class LookUp(BaseTool):
    name = "look_up"
    description = "The value of a key."
    parameters = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}

    def __init__(self, task):
        super().__init__()
        self.task = task

    def call(self, params, **_):
        return self.task.look_up(self._verify_json_format_args(params)["key"])


class QwenAgent(agent_case.AgentCase):
    def settings(self, raw, **options):
        return {"model": "demo", "model_type": "oai", "model_server": f"{self.url}/v1", "api_key": "any",
                "generate_cfg": {"temperature": 0, "max_tokens": 800, "max_input_tokens": 30000, "use_raw_api": raw, **options}}

    def ask(self, raw, tools, prompt):
        """What the agent's last state is: its messages."""
        states = list(Assistant(llm=self.settings(raw), function_list=tools).run([{"role": "user", "content": prompt}]))
        self.assertGreater(len(states), 10)
        return states[-1]

    def test_a_loop_of_three_calls(self):
        for raw in (False, True):
            with self.subTest(raw=raw):
                task = self.task(before=("Let me look.\n", "", ""))
                messages = self.ask(raw, [LookUp(task)], task.prompt)
                self.assert_done(task, messages[-1]["content"])

    def test_a_structured_answer(self):
        schema = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"},
                                                   "coast": {"type": "boolean"}}, "required": ["city", "people", "coast"]}
        form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
        asked = [{"role": "user", "content": self.says_json(agent_case.CITY)}]
        model = get_chat_model(self.settings(False, response_format=form))
        self.assertEqual(json.loads(model.chat(asked, stream=False)[-1]["content"]), agent_case.CITY)
        self.assertEqual(json.loads(list(model.chat(asked, stream=True))[-1][-1]["content"]), agent_case.CITY)

    def test_a_refusal(self):
        for raw in (False, True):
            with self.subTest(raw=raw):
                task = self.task()
                messages = self.ask(raw, [LookUp(task)], self.says(agent_case.REFUSAL))
                self.assertEqual([message["content"] for message in messages], [agent_case.REFUSAL])
                self.assertEqual(task.asked, [])


if __name__ == "__main__":
    unittest.main()
