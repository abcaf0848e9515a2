"""pydantic-ai, with its models of three APIs: chat completions, responses and Anthropic's messages."""

import asyncio
import unittest

import agent_case
import client_packages

client_packages.install("pydantic_ai")
import pydantic  # noqa: E402
import pydantic_ai  # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402


class City(pydantic.BaseModel):
    city: str
    people: int
    coast: bool


class PydanticAI(agent_case.AgentCase):
    def setUp(self):
        self.loop = asyncio.new_event_loop()  # one for each client, which keeps connections
        self.addCleanup(self.loop.close)

    def models(self):
        openai = OpenAIProvider(base_url=f"{self.url}/v1", api_key="any")
        yield OpenAIChatModel("demo", provider=openai)
        yield OpenAIResponsesModel("demo", provider=openai)
        yield AnthropicModel("demo", provider=AnthropicProvider(base_url=self.url, api_key="any"),
                             profile={"supports_json_schema_output": True})

    def agents(self, **options):
        for model in self.models():
            yield pydantic_ai.Agent(model, instructions="You add up values.", retries=0, **options)

    def run_whole_and_streamed(self, agent, prompt):
        async def streamed():
            async with agent.run_stream(prompt) as result:
                return await result.get_output()
        yield self.loop.run_until_complete(agent.run(prompt)).output
        yield self.loop.run_until_complete(streamed())

    def test_a_loop_of_three_calls(self):
        for agent in self.agents():
            with self.subTest(type(agent.model).__name__):
                task = self.task()
                agent.tool_plain(task.look_up, name="look_up")
                for answer in self.run_whole_and_streamed(agent, task.prompt):
                    self.assert_done(task, answer)
                    task.asked.clear()

    def test_structured_answers(self):
        forced = self.says(agent_case.call("final_result", agent_case.CITY))  # tool_choice: required
        for output, prompt in ((City, forced), (pydantic_ai.NativeOutput(City), self.says_json(agent_case.CITY)),
                               (pydantic_ai.PromptedOutput(City), self.says_json(agent_case.CITY))):
            for agent in self.agents(output_type=output):
                with self.subTest(type(agent.model).__name__):
                    for answer in self.run_whole_and_streamed(agent, prompt):
                        self.assertEqual(answer, City(**agent_case.CITY))

    def test_a_refusal(self):
        for agent in self.agents():
            with self.subTest(type(agent.model).__name__):
                agent.tool_plain(lambda key: "never", name="look_up")
                for answer in self.run_whole_and_streamed(agent, self.says(agent_case.REFUSAL)):
                    self.assertEqual(answer, agent_case.REFUSAL)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
