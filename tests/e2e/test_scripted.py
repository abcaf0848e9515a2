"""What a model says and what clients receive, through a checkpoint that says what it is told (scripted_model.py).

Tokens of that checkpoint are single bytes, so streams are cut at every byte of the reply.
"""

import http.client
import json
import pathlib
import unittest

import folders
import scripted_model
from cluster import MIXED, Cluster

TOOLS = [{"type": "function", "function": {
    "name": "write_file", "description": "Writes a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"},
                                                    "mode": {"type": "integer"}}, "required": ["path"]}}}]
ARGUMENTS = {"path": "src/ä \"b\".py", "text": "a\n\tif x < 1 </y>:\n", "mode": 420}


def chatml(example):
    """ChatML with a family's format of calls shown, as published templates show it to the model."""
    return ("{%- if tools %}<|im_start|>system\nCalls look so: " + example + "\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
            + scripted_model.CHATML)


CALL = json.dumps({"name": "write_file", "arguments": ARGUMENTS}, ensure_ascii=False)
RAW = [("path", ARGUMENTS["path"]), ("text", ARGUMENTS["text"]), ("mode", "420")]
DUMPED = json.dumps(ARGUMENTS)
# format -> (marks, what its template shows, what the model says)
FORMATS = {
    "hermes": (["<tool_call>", "</tool_call>"], "<tool_call>\n{}\n</tool_call>", f"<tool_call>\n{CALL}\n</tool_call>"),
    "mistral": (["[TOOL_CALLS]", "[ARGS]"], "[TOOL_CALLS]name[ARGS]{}", f"[TOOL_CALLS]write_file[ARGS]{DUMPED}"),
    "llama3_json": (["<|python_tag|>"], "ipython: {'name': 'f', \"parameters\": {}}",
                    json.dumps({"name": "write_file", "parameters": ARGUMENTS})),
    "qwen3_xml": (["<tool_call>", "</tool_call>"], "<tool_call><function=f><parameter=p>",
                  "<tool_call>\n<function=write_file>\n"
                  + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in RAW)
                  + "</function>\n</tool_call>"),
    "glm45": (["<tool_call>", "</tool_call>"], "<tool_call>f<arg_key>k</arg_key>",
              "<tool_call>write_file\n" + "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
                                                  for key, value in RAW) + "</tool_call>"),
    "deepseek_v31": (["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
                      "<｜tool▁sep｜>"], "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
                     f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write_file<｜tool▁sep｜>{DUMPED}<｜tool▁call▁end｜>"
                     "<｜tool▁calls▁end｜>"),
    "kimi_k2": (["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                 "<|tool_call_argument_begin|>", "<|tool_call_end|>"], "<|tool_call_begin|>",
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>"
                f"{DUMPED}<|tool_call_end|><|tool_calls_section_end|>"),
}


class Scripted(unittest.TestCase):
    def serve(self, marks=(), template=scripted_model.CHATML, **frontend):
        folder = pathlib.Path(folders.temporary(self, "baton-scripted-")) / "model"
        self.script = scripted_model.write(folder, template, ["<|im_start|>", "<|im_end|>", *marks])
        self.cluster = Cluster(workers=MIXED, model=folder, frontend=frontend)
        self.addCleanup(self.cluster.__exit__, None)
        self.cluster.__enter__()
        self.port = next(iter(self.cluster.frontends.values()))

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def chat(self, said, **options):
        body = {"messages": [{"role": "user", "content": self.script(said)}], "temperature": 0, "max_tokens": 1500, **options}
        status, text = self.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, text)
        return json.loads(text)["choices"][0]

    def stream(self, said, **options):
        """The same reply out of a stream: content, calls and the finish reason."""
        body = {"messages": [{"role": "user", "content": self.script(said)}], "temperature": 0, "max_tokens": 1500,
                "stream": True, **options}
        status, text = self.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, text)
        content, calls, reason = "", [], None
        for line in text.splitlines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                content += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls", []):
                    if call["index"] == len(calls):
                        calls.append({"name": call["function"]["name"], "arguments": ""})
                    calls[call["index"]]["arguments"] += call["function"]["arguments"]
                reason = choice["finish_reason"] or reason
        return content, calls, reason

    def test_the_model_says_what_it_is_told(self):
        self.serve()
        for said in ("Hello, world!", "Grüße, 日本 🚀\n\n{\"a\": 1}", "a" * 1400):
            self.assertEqual(self.chat(said)["message"]["content"], said)
            self.assertEqual(self.stream(said), (said, [], "stop"))

    def test_calls_of_every_format(self):
        for name, (marks, shown, said) in FORMATS.items():
            with self.subTest(name):
                self.serve(marks, chatml(shown))
                choice = self.chat(said, tools=TOOLS)
                (call,) = choice["message"]["tool_calls"]
                self.assertEqual(call["function"]["name"], "write_file")
                self.assertEqual(json.loads(call["function"]["arguments"]), ARGUMENTS)
                self.assertEqual(choice["finish_reason"], "tool_calls")
                self.assertFalse(choice["message"]["content"])
                content, calls, reason = self.stream(said, tools=TOOLS)
                self.assertEqual((content, reason), ("", "tool_calls"))
                self.assertEqual([json.loads(call["arguments"]) for call in calls], [ARGUMENTS])
                # Without tools, and cut off in the middle, it is text.
                self.assertNotIn("tool_calls", self.chat(said)["message"])
                cut = self.chat(said, tools=TOOLS, max_tokens=60)
                self.assertNotIn("tool_calls", cut["message"])
                self.assertEqual(cut["finish_reason"], "length")
                self.assertTrue(cut["message"]["content"])
                self.assertEqual(self.stream(said, tools=TOOLS, max_tokens=60)[1:], ([], "length"))
                self.cluster.__exit__(None)

    def test_strict_functions_hold_their_calls(self):
        """Free text stays as it was said; a call's arguments match the schema whatever the model says."""
        strict = json.loads(json.dumps(TOOLS))
        strict[0]["function"]["strict"] = True
        for name in ("hermes", "mistral", "deepseek_v31", "kimi_k2"):
            with self.subTest(name):
                marks, shown, said = FORMATS[name]
                self.serve(marks, chatml(shown))
                choice = self.chat("I write it. " + said, tools=strict)
                (call,) = choice["message"]["tool_calls"]
                self.assertEqual(json.loads(call["function"]["arguments"]), ARGUMENTS)
                self.assertEqual(choice["message"]["content"], "I write it.")
                free = "No file: {\"a\": 1} <b> [TOOL"
                self.assertEqual(self.chat(free, tools=strict)["message"]["content"], free)
                number = said.replace("\"mode\": 420", "\"mode\": true")
                self.assertNotEqual(number, said)
                (call,) = self.chat(number, tools=TOOLS)["message"]["tool_calls"]
                self.assertIs(json.loads(call["function"]["arguments"])["mode"], True)
                choice = self.chat(number, tools=strict, max_tokens=600)
                for call in choice["message"].get("tool_calls", []):
                    self.assertIs(type(json.loads(call["function"]["arguments"])["mode"]), int)
                self.cluster.__exit__(None)

    def test_a_keyword_that_cannot_be_enforced_is_refused_or_named(self):
        marks, shown, said = FORMATS["hermes"]
        self.serve(marks, chatml(shown))
        function = {"name": "write_file", "parameters": {
            "type": "object", "properties": {"path": {"type": "array", "uniqueItems": True}}}}
        body = {"messages": [{"role": "user", "content": self.script("no")}], "temperature": 0, "max_tokens": 5}
        strict = {**body, "tools": [{"type": "function", "function": {**function, "strict": True}}]}
        status, text = self.post("/v1/chat/completions", strict)
        self.assertEqual(status, 400, text)
        self.assertIn("write_file: uniqueItems at #/properties/path", text)
        status, text = self.post("/v1/chat/completions", {**strict, "schema_unenforceable": "report"})
        self.assertEqual(status, 200, text)
        best = {**body, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
        self.assertEqual(self.post("/v1/chat/completions", best)[0], 200)

    def test_a_reasoning_may_come_before_a_schema(self):
        template = scripted_model.CHATML + "{#<think>x</think>#}"
        schema = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
            "type": "object", "properties": {"a": {"allOf": [{"type": "integer"}, {"minimum": 5}]}}, "required": ["a"]}}}
        for special in (["<|im_start|>", "<|im_end|>"], ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]):
            with self.subTest(special=special):
                folder = pathlib.Path(folders.temporary(self, "baton-scripted-")) / "model"
                self.script = scripted_model.write(
                    folder, template, ["<|im_start|>", "<|im_end|>", "<think>", "</think>"], special=special)
                self.cluster = Cluster(workers=MIXED, model=folder)
                self.addCleanup(self.cluster.__exit__, None)
                self.cluster.__enter__()
                self.port = next(iter(self.cluster.frontends.values()))
                message = self.chat("<think>\nis {\"a\": 4} fine?\n</think>\n\n{\"a\": 7}", response_format=schema)["message"]
                self.assertEqual(message["content"], "{\"a\": 7}")
                self.assertEqual(message["reasoning_content"], "is {\"a\": 4} fine?")
                self.assertEqual(self.chat("{\"a\": 7}", response_format=schema)["message"]["content"], "{\"a\": 7}")
                choice = self.chat("<think>\nhm\n</think>\n\n{\"a\": 4}", response_format=schema, max_tokens=60)
                if choice["finish_reason"] == "stop":
                    self.assertGreaterEqual(json.loads(choice["message"]["content"])["a"], 5)
                self.cluster.__exit__(None)

    def test_no_api_reports_a_call_that_was_not_said(self):
        marks, shown, said = FORMATS["hermes"]
        self.serve(marks, chatml(shown))
        raw = "<tool_call>\n{\"name\": \"write_file\", \"arguments\": {\"path\": \"a\nb\"}}\n</tool_call>"
        call = self.chat(raw, tools=TOOLS)["message"]["tool_calls"][0]["function"]
        self.assertEqual(json.loads(call["arguments"]), {"path": "a\nb"})
        for bad in (said.replace("write_file", "erase_disk"), said.replace("\"path\":", "\"path\""),
                    "<tool_call>\n{\"name\": \"write_file\", \"arguments\": [1]}\n</tool_call>"):
            choice = self.chat(bad, tools=TOOLS)
            self.assertNotIn("tool_calls", choice["message"], bad)
            self.assertEqual(choice["finish_reason"], "stop")
            self.assertEqual(choice["message"]["content"], bad)
            self.assertEqual(self.stream(bad, tools=TOOLS), (bad, [], "stop"))
        function = TOOLS[0]["function"]
        for said_too, length in ((said, 60), (said.replace("\"path\":", "\"path\""), 1500)):
            status, text = self.post("/v1/messages", {
                "model": "demo", "max_tokens": length, "temperature": 0,
                "messages": [{"role": "user", "content": self.script(said_too)}],
                "tools": [{"name": function["name"], "input_schema": function["parameters"]}]})
            self.assertEqual(status, 200, text)
            reply = json.loads(text)
            self.assertEqual([block["type"] for block in reply["content"]], ["text"])
            self.assertEqual(reply["stop_reason"], "max_tokens" if length == 60 else "end_turn")
            status, text = self.post("/api/chat", {
                "model": "demo", "stream": False, "tools": TOOLS, "options": {"num_predict": length, "temperature": 0},
                "messages": [{"role": "user", "content": self.script(said_too)}]})
            self.assertEqual(status, 200, text)
            self.assertNotIn("tool_calls", json.loads(text)["message"])

    def test_stop_strings_end_the_answer_and_not_the_reasoning(self):
        marks = ["<think>", "</think>"]
        template = "{#- <think></think> -#}" + scripted_model.CHATML
        self.serve(marks, template)
        said = "<think>\nFirst END then\n</think>\n\nThe answer END and more"
        thought = len("<think>\nFirst END then\n</think>") - len("<think>") - len("</think>") + 2
        choice = self.chat(said, stop=["END"])
        self.assertEqual(choice["message"]["content"], "The answer ")
        self.assertEqual(choice["message"]["reasoning_content"], "First END then")
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", "END"))
        self.assertEqual(self.stream(said, stop=["END"])[0], "The answer ")
        # The line ends between the reasoning and the answer belong to neither.
        self.assertEqual(self.chat(said, stop=["\n", " and"])["message"]["content"], "The answer END")
        self.assertFalse(self.chat(said, stop=["The"])["message"]["content"])
        body = {"messages": [{"role": "user", "content": self.script(said)}], "temperature": 0, "max_tokens": 1500}
        usage = json.loads(self.post("/v1/chat/completions", body)[1])["usage"]
        self.assertEqual(usage["completion_tokens_details"], {"reasoning_tokens": thought})
        self.assertGreater(usage["completion_tokens"], thought)
        status, text = self.post("/v1/messages", {**body, "model": "demo", "stop_sequences": ["END"]})
        self.assertEqual(status, 200, text)
        reply = json.loads(text)
        self.assertEqual([block["type"] for block in reply["content"]], ["thinking", "text"])
        self.assertEqual((reply["content"][1]["text"], reply["stop_sequence"]), ("The answer ", "END"))

    def test_parsers_may_be_named(self):
        template = "{%- if tools %}Tools: {{ tools | tojson }}{% endif %}" + scripted_model.CHATML
        said = "[THINK]hm[/THINK]" + FORMATS["hermes"][2]
        self.serve(["[THINK]", "[/THINK]", *FORMATS["hermes"][0]], template, tool_call_parser="hermes",
                   reasoning_parser="mistral")
        message = self.chat(said, tools=TOOLS)["message"]
        self.assertEqual(message["reasoning_content"], "hm")
        self.assertEqual(json.loads(message["tool_calls"][0]["function"]["arguments"]), ARGUMENTS)
        self.cluster.__exit__(None)
        self.serve(FORMATS["hermes"][0], chatml(FORMATS["hermes"][1]), tool_call_parser="none")
        message = self.chat(FORMATS["hermes"][2], tools=TOOLS, skip_special_tokens=False)["message"]
        self.assertNotIn("tool_calls", message)
        self.assertIn("write_file", message["content"])

    def test_a_reply_without_a_limit_is_as_long_as_the_model_wants(self):
        self.serve()
        said = "x" * 900
        status, text = self.post("/v1/chat/completions", {"temperature": 0, "messages": [
            {"role": "user", "content": self.script(said)}]})
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], said)


if __name__ == "__main__":
    unittest.main()
