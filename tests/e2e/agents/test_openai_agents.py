"""OpenAI's agents SDK, with its models of both APIs: responses (its default) and chat completions."""

import asyncio
import unittest

import agent_case
import client_packages

client_packages.install("openai_agents")
import agents  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402

agents.set_tracing_disabled(True)


class City(pydantic.BaseModel):
    city: str
    people: int
    coast: bool


class OpenAIAgents(agent_case.AgentCase):
    def setUp(self):
        self.loop = asyncio.new_event_loop()  # one for each client, which keeps connections
        self.addCleanup(self.loop.close)

    def agents_of(self, **options):
        """An agent of each API."""
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, timeout=60)
        for model in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
            yield agents.Agent(name=model.__name__, instructions="You add up values.", model=model("demo", client), **options)

    def run_whole_and_streamed(self, agent, prompt):
        async def both():
            streamed = agents.Runner.run_streamed(agent, prompt)
            kinds = [event.type async for event in streamed.stream_events()]
            return streamed, kinds
        streamed, kinds = self.loop.run_until_complete(both())
        self.assertIn("raw_response_event", kinds)
        yield streamed
        yield self.loop.run_until_complete(agents.Runner.run(agent, prompt))

    def test_a_loop_of_three_calls(self):
        for agent in self.agents_of(model_settings=agents.ModelSettings(temperature=0, max_tokens=800)):
            with self.subTest(agent.name):
                task = self.task()

                @agents.function_tool
                def look_up(key: str) -> str:
                    """The value of a key."""
                    return task.look_up(key)

                agent.tools = [look_up]
                for result in self.run_whole_and_streamed(agent, task.prompt):
                    self.assert_done(task, result.final_output)
                    self.assertEqual([item.type for item in result.new_items],
                                     ["tool_call_item", "tool_call_output_item"] * 3 + ["message_output_item"])
                    task.asked.clear()

    def test_text_before_calls(self):
        for agent in self.agents_of():
            with self.subTest(agent.name):
                task = self.task(before=("Let me look.\n", "", "And the last:\n"))
                agent.tools = [agents.FunctionTool(
                    name="look_up", description="", strict_json_schema=False,
                    params_json_schema={"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
                    on_invoke_tool=lambda _, arguments: self.invoked(task, arguments))]
                for result in self.run_whole_and_streamed(agent, task.prompt):
                    self.assert_done(task, result.final_output)
                    self.assertEqual([item.type for item in result.new_items].count("message_output_item"), 3)
                    task.asked.clear()

    @staticmethod
    async def invoked(task, arguments):
        return task.look_up(agent_case.json.loads(arguments)["key"])

    def test_a_structured_answer(self):
        for agent in self.agents_of(output_type=City):
            with self.subTest(agent.name):
                for result in self.run_whole_and_streamed(agent, self.says_json(agent_case.CITY)):
                    self.assertEqual(result.final_output, City(**agent_case.CITY))

    def test_a_refusal(self):
        for agent in self.agents_of(tools=[agents.function_tool(lambda key: "never", name_override="look_up")]):
            with self.subTest(agent.name):
                for result in self.run_whole_and_streamed(agent, self.says(agent_case.REFUSAL)):
                    self.assertEqual(result.final_output, agent_case.REFUSAL)
                    self.assertEqual([item.type for item in result.new_items], ["message_output_item"])


if __name__ == "__main__":
    unittest.main()
