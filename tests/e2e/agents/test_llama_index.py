"""LlamaIndex with OpenAILike: its agent of function calls, the one that writes ReAct, and structured answers."""

import asyncio
import json
import unittest

import agent_case
import client_packages

client_packages.install("llama_index")
import pydantic  # noqa: E402
from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ReActAgent  # noqa: E402
from llama_index.core.llms import ChatMessage  # noqa: E402
from llama_index.core.tools import FunctionTool  # noqa: E402
from llama_index.llms.openai_like import OpenAILike  # noqa: E402


class City(pydantic.BaseModel):
    """A city."""

    city: str
    people: int
    coast: bool


class LlamaIndex(agent_case.AgentCase):
    def setUp(self):
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)

    def model(self, **options):
        return OpenAILike(model="demo", api_base=f"{self.url}/v1", api_key="any", is_chat_model=True, max_retries=0, temperature=0,
                          is_function_calling_model=True, context_window=49152, max_tokens=800, **options)

    def run_agent(self, agent, prompt):
        async def run():
            handler = agent.run(prompt)
            deltas = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]
            return str(await handler), "".join(deltas)
        return self.loop.run_until_complete(run())

    def tool(self, task):
        return FunctionTool.from_defaults(task.look_up, name="look_up", description="The value of a key.")

    def test_a_loop_of_three_calls(self):
        for streaming in (False, True):
            task = self.task()
            answer, deltas = self.run_agent(FunctionAgent(
                tools=[self.tool(task)], llm=self.model(), system_prompt="You add up values.", streaming=streaming), task.prompt)
            self.assert_done(task, answer)
            self.assertEqual(deltas, agent_case.ANSWER if streaming else "")

    def test_a_loop_in_text(self):
        task = self.task()
        said = [f"Thought: one more.\nAction: look_up\nAction Input: {json.dumps({'key': key})}\n" for key in agent_case.KEYS]
        said.append(f"Thought: I can answer without using any more tools.\nAnswer: {agent_case.ANSWER}")
        first, *task.results = [self.script.anywhere(text) for text in said]
        answer, _ = self.run_agent(ReActAgent(tools=[self.tool(task)], llm=self.model()), f"Please add up. {first}")
        self.assert_done(task, answer)

    def test_structured_answers(self):
        forced = self.says(agent_case.call("City", agent_case.CITY))
        for prompt, options in ((forced, {}), (self.says_json(agent_case.CITY), {"should_use_structured_outputs": True})):
            structured = self.model(**options).as_structured_llm(City)
            messages = [ChatMessage(role="user", content=prompt)]
            self.assertEqual(structured.chat(messages).raw, City(**agent_case.CITY))
            self.assertEqual(list(structured.stream_chat(messages))[-1].raw, City(**agent_case.CITY))

    def test_a_refusal(self):
        task = self.task()
        answer, _ = self.run_agent(FunctionAgent(tools=[self.tool(task)], llm=self.model()), self.says(agent_case.REFUSAL))
        self.assertEqual((answer, task.asked), (agent_case.REFUSAL, []))


if __name__ == "__main__":
    unittest.main(warnings="ignore")
