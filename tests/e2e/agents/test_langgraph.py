"""LangGraph's and LangChain's agents, with langchain-openai (both APIs) and langchain-anthropic."""

import unittest

import agent_case
import client_packages

client_packages.install("langgraph")
import pydantic  # noqa: E402
from langchain.agents import create_agent  # noqa: E402
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy  # noqa: E402
from langchain_anthropic import ChatAnthropic  # noqa: E402
from langchain_core.tools import StructuredTool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from langgraph.graph import END, START, MessagesState, StateGraph  # noqa: E402
from langgraph.prebuilt import ToolNode, tools_condition  # noqa: E402


class City(pydantic.BaseModel):
    """A city."""

    city: str
    people: int
    coast: bool


class LangGraph(agent_case.AgentCase):
    def models(self):
        for responses in (False, True):
            yield ChatOpenAI(model="demo", base_url=f"{self.url}/v1", api_key="any", max_retries=0, temperature=0,
                             use_responses_api=responses)
        yield ChatAnthropic(model="demo", base_url=self.url, api_key="any", max_retries=0, max_tokens=1000)

    def tools(self, task):
        return [StructuredTool.from_function(task.look_up, name="look_up", description="The value of a key.")]

    def test_a_loop_of_three_calls(self):
        for model in self.models():
            with self.subTest(model.get_name(), responses=getattr(model, "use_responses_api", None)):
                task = self.task(before=("Let me look.", "", ""))
                agent = create_agent(model, self.tools(task), system_prompt="You add up values.")
                asked = {"messages": [{"role": "user", "content": task.prompt}]}
                whole = agent.invoke(asked)["messages"]
                self.assert_done(task, whole[-1].text)
                task.asked.clear()
                streamed = [message for message, _ in agent.stream(asked, stream_mode="messages") if message.type == "AIMessageChunk"]
                self.assertEqual(task.asked, agent_case.KEYS)
                self.assertEqual("".join(message.text for message in streamed), "Let me look." + agent_case.ANSWER)
                self.assertGreater(len(streamed), 10)

    def test_a_graph_of_ones_own(self):
        for model in self.models():
            with self.subTest(model.get_name(), responses=getattr(model, "use_responses_api", None)):
                task = self.task()
                tools = self.tools(task)
                bound = model.bind_tools(tools)
                graph = StateGraph(MessagesState)
                graph.add_node("model", lambda state, bound=bound: {"messages": [bound.invoke(state["messages"])]})
                graph.add_node("tools", ToolNode(tools))
                graph.add_edge(START, "model")
                graph.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
                graph.add_edge("tools", "model")
                messages = graph.compile().invoke({"messages": [("user", task.prompt)]})["messages"]
                self.assert_done(task, messages[-1].text)
                self.assertEqual(len(messages), 8)

    def test_structured_answers(self):
        for model in self.models():
            with self.subTest(model.get_name(), responses=getattr(model, "use_responses_api", None)):
                forced = self.says(agent_case.call("City", agent_case.CITY))
                for strategy, prompt in ((ToolStrategy(City), forced), (ProviderStrategy(City), self.says_json(agent_case.CITY))):
                    reply = create_agent(model, [], response_format=strategy).invoke({"messages": [("user", prompt)]})
                    self.assertEqual(reply["structured_response"], City(**agent_case.CITY))
                for method, prompt in (("function_calling", forced), ("json_schema", self.says_json(agent_case.CITY))):
                    bound = model.with_structured_output(City, method=method)
                    self.assertEqual(bound.invoke(prompt), City(**agent_case.CITY))
                    self.assertEqual(list(bound.stream(prompt))[-1], City(**agent_case.CITY))
                if isinstance(model, ChatOpenAI):
                    bound = model.with_structured_output(None, method="json_mode")
                    self.assertEqual(bound.invoke(self.says_json(agent_case.CITY)), agent_case.CITY)

    def test_a_refusal(self):
        for model in self.models():
            with self.subTest(model.get_name(), responses=getattr(model, "use_responses_api", None)):
                task = self.task()
                agent = create_agent(model, self.tools(task))
                messages = agent.invoke({"messages": [("user", self.says(agent_case.REFUSAL))]})["messages"]
                self.assertEqual((len(messages), messages[-1].text, task.asked), (2, agent_case.REFUSAL, []))
                self.assertGreater(messages[-1].usage_metadata["input_tokens"], 0)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
