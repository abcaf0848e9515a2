"""smolagents: its agent of tool calls and its agent that writes code, over chat completions."""

import contextlib
import io
import json
import unittest

import agent_case
import client_packages

client_packages.install("smolagents")
import smolagents  # noqa: E402


class LookUp(smolagents.Tool):
    name = "look_up"
    description = "The value of a key."
    inputs = {"key": {"type": "string", "description": "the key"}}
    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, task):
        super().__init__()
        self.forward = task.look_up


class Smolagents(agent_case.AgentCase):
    def model(self, **options):
        return smolagents.OpenAIModel("demo", api_base=f"{self.url}/v1", api_key="any", temperature=0, **options)

    def whole_and_streaming(self, make):
        for stream in (False, True):
            yield make(stream_outputs=stream, verbosity_level=smolagents.LogLevel.OFF, max_steps=6)

    def test_a_loop_of_three_calls(self):
        answer = agent_case.call("final_answer", {"answer": agent_case.ANSWER})
        for agent in self.whole_and_streaming(lambda **options: smolagents.ToolCallingAgent(
                tools=[], model=self.model(), **options)):
            with self.subTest(stream=agent.stream_outputs), contextlib.redirect_stdout(io.StringIO()):  # it prints what it streams
                task = self.task(answer=answer)
                agent.tools["look_up"] = LookUp(task)
                self.assert_done(task, agent.run(task.prompt))

    def test_a_loop_in_code(self):
        for agent in self.whole_and_streaming(lambda **options: smolagents.CodeAgent(
                tools=[], model=self.model(), **options)):
            with self.subTest(stream=agent.stream_outputs), contextlib.redirect_stdout(io.StringIO()):  # it prints what it streams
                said = [f"Thought: one more.\n<code>\nprint(look_up({key!r}))\n</code>" for key in agent_case.KEYS]
                said.append(f"<code>\nfinal_answer({json.dumps(agent_case.ANSWER)})\n</code>")
                task = self.task()
                first, *task.results = [self.script.anywhere(text) for text in said]
                agent.tools["look_up"] = LookUp(task)
                self.assert_done(task, agent.run(f"Please add up. {first}"))

    def test_a_structured_answer(self):
        schema = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"},
                                                   "coast": {"type": "boolean"}}, "required": ["city", "people", "coast"]}
        options = {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}}
        messages = [smolagents.ChatMessage(role="user", content=self.says_json(agent_case.CITY))]
        model = self.model()
        self.assertEqual(json.loads(model.generate(messages, **options).content), agent_case.CITY)
        streamed = "".join(delta.content or "" for delta in model.generate_stream(messages, **options))
        self.assertEqual(json.loads(streamed), agent_case.CITY)
        # The agent's own: thought and code as JSON.
        said = {"thought": "I know.", "code": f"final_answer({json.dumps(agent_case.ANSWER)})"}
        agent = smolagents.CodeAgent(tools=[], model=model, use_structured_outputs_internally=True, max_steps=2,
                                     verbosity_level=smolagents.LogLevel.OFF)
        self.assertEqual(agent.run(self.says_json(said)), agent_case.ANSWER)

    def test_a_refusal(self):
        """This client asks for a call always (tool_choice: required): a refusal is its final_answer."""
        for agent in self.whole_and_streaming(lambda **options: smolagents.ToolCallingAgent(
                tools=[], model=self.model(), **options)):
            with self.subTest(stream=agent.stream_outputs), contextlib.redirect_stdout(io.StringIO()):  # it prints what it streams
                said = agent_case.call("final_answer", {"answer": agent_case.REFUSAL})
                self.assertEqual(agent.run(self.says(said)), agent_case.REFUSAL)
                self.assertEqual(len(agent.memory.steps), 2)


if __name__ == "__main__":
    unittest.main()
