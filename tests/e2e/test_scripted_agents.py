"""What coding agents send and get back, through a checkpoint that says what it is told (scripted_model.py)."""

import http.client
import json
import pathlib
import unittest

import folders
import scripted_model
from cluster import MIXED, PAIR, Cluster

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"type": "function", "function": {"name": "read_file", "description": "Reads.", "parameters": PARAMETERS}}]
MARKS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
SHOWN = ("{%- if tools %}<|im_start|>system\n<tool_call>\n{}\n</tool_call>\n{{ tools | tojson }}<|im_end|>\n{% endif %}")
# Reasoning and calls of the history are written down, so that what is sent back changes the prompt.
TEMPLATE = SHOWN + """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content %}{{- '<think>' + m.reasoning_content + '</think>' }}{% endif %}
{{- m.content or '' }}
{%- for c in m.tool_calls or [] %}{{- '<tool_call>' + c.function.name + (c.function.arguments | tojson) + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
# As Mistral's templates refuse what other families take.
STRICT = """{%- set ns = namespace(turns=0) %}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != (ns.turns % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set ns.turns = ns.turns + 1 %}{% endif %}
{%- for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('IDs of length 9') }}{% endif %}{% endfor %}
{%- if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('IDs of length 9') }}{% endif %}
{%- endfor %}""" + TEMPLATE
ARGUMENTS = {"path": "src/ä.py"}
CALL = "<tool_call>\n" + json.dumps({"name": "read_file", "arguments": ARGUMENTS}) + "\n</tool_call>"


THOUGHT = "".join(f"{number:03}_hm." for number in range(43))[:300]


def events(text):
    """The objects of a stream of events."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


class ScriptedAgents(unittest.TestCase):
    def serve(self, template=TEMPLATE, workers=MIXED):
        folder = pathlib.Path(folders.temporary(self, "baton-agents-")) / "model"
        self.script = scripted_model.write(folder, template, MARKS)
        self.cluster = Cluster(workers=workers, model=folder)
        self.addCleanup(self.cluster.__exit__, None)
        self.cluster.__enter__()
        self.port = next(iter(self.cluster.frontends.values()))

    def post(self, path, body):
        """Status, headers and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def good(self, path, body):
        status, headers, text = self.post(path, body)
        self.assertEqual(status, 200, text)
        return headers, text

    # One turn of each API: takes the history, returns what the server answered, as its clients send it back.

    def chat_turn(self, history, stream):
        body = {"model": "demo", "messages": history, "tools": TOOLS, "temperature": 0, "max_tokens": 900, "stream": stream}
        _, text = self.good("/v1/chat/completions", body)
        if not stream:
            return [json.loads(text)["choices"][0]["message"]]
        message = {"role": "assistant", "content": None, "tool_calls": []}
        for chunk in events(text):
            for choice in chunk["choices"]:
                for key in ("content", "reasoning_content"):
                    if choice["delta"].get(key):
                        message[key] = (message.get(key) or "") + choice["delta"][key]
                for call in choice["delta"].get("tool_calls", []):
                    if call["index"] == len(message["tool_calls"]):
                        message["tool_calls"].append({"index": call["index"], "id": call["id"], "type": "function",
                                                      "function": {"name": call["function"]["name"], "arguments": ""}})
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        return [message]

    def messages_turn(self, history, stream):
        body = {"model": "demo", "max_tokens": 900, "messages": history, "temperature": 0, "stream": stream,
                "tools": [{"name": "read_file", "input_schema": PARAMETERS}]}
        _, text = self.good("/v1/messages", body)
        if not stream:
            return [{"role": "assistant", "content": json.loads(text)["content"]}]
        blocks = []
        for event in events(text):
            if event["type"] == "content_block_start":
                blocks.append(dict(event["content_block"], partial=""))
            elif event["type"] == "content_block_delta":
                for key in ("text", "thinking"):
                    blocks[-1][key] = blocks[-1].get(key, "") + event["delta"].get(key, "")
                blocks[-1]["partial"] += event["delta"].get("partial_json", "")
        kept = {"text": ("type", "text"), "thinking": ("type", "thinking", "signature"),
                "tool_use": ("type", "id", "name", "input")}
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["partial"])
        return [{"role": "assistant", "content": [{key: block[key] for key in kept[block["type"]]} for block in blocks]}]

    def responses_turn(self, history, stream):
        body = {"model": "demo", "input": history, "temperature": 0, "max_output_tokens": 900, "stream": stream, "store": False,
                "include": ["reasoning.encrypted_content"],
                "tools": [{"type": "function", "name": "read_file", "parameters": PARAMETERS}]}
        _, text = self.good("/v1/responses", body)
        if not stream:
            return json.loads(text)["output"]
        return [event["item"] for event in events(text) if event["type"] == "response.output_item.done"]

    def ollama_turn(self, history, stream):
        body = {"model": "demo", "messages": history, "tools": TOOLS, "stream": stream,
                "options": {"temperature": 0, "num_predict": 900}}
        _, text = self.good("/api/chat", body)
        message = {"role": "assistant", "content": "", "thinking": ""}
        for line in text.splitlines():
            said = json.loads(line)["message"]
            message["content"] += said.get("content") or ""
            message["thinking"] += said.get("thinking") or ""
            message.setdefault("tool_calls", []).extend(said.get("tool_calls") or [])
        return [message]

    APIS = {
        "chat": (chat_turn, lambda said: {"role": "user", "content": said},
                 lambda answer, said: [{"role": "tool", "tool_call_id": answer[0]["tool_calls"][0]["id"], "content": said}],
                 lambda answer: answer[0]["content"]),
        "messages": (messages_turn, lambda said: {"role": "user", "content": said},
                     lambda answer, said: [{"role": "user", "content": [
                         {"type": "tool_result", "tool_use_id": answer[0]["content"][-1]["id"], "content": said}]}],
                     lambda answer: answer[0]["content"][-1]["text"]),
        "responses": (responses_turn, lambda said: {"type": "message", "role": "user",
                                                    "content": [{"type": "input_text", "text": said}]},
                      lambda answer, said: [{"type": "function_call_output", "call_id": answer[-1]["call_id"], "output": said}],
                      lambda answer: answer[-1]["content"][0]["text"]),
        "ollama": (ollama_turn, lambda said: {"role": "user", "content": said},
                   lambda answer, said: [{"role": "tool", "tool_name": "read_file", "content": said}],
                   lambda answer: answer[0]["content"]),
    }

    def test_what_was_answered_can_be_sent_back(self):
        for template in (TEMPLATE, STRICT):
            self.serve(template)
            for name, (turn, user, result, text) in self.APIS.items():
                for stream in (False, True):
                    with self.subTest(api=name, stream=stream, strict=template == STRICT):
                        history = [user(self.script("<think>\nhm, so\n</think>\n\n" + CALL))]
                        for said in (CALL, "<think>\nagain\n</think>\n\nI look.\n" + CALL, "It is short."):
                            answer = turn(self, history, stream)
                            self.assertIn("read_file", json.dumps(answer))
                            history += answer + result(answer, self.script(said))
                        answer = turn(self, history, stream)
                        self.assertEqual(text(answer), "It is short.")
                        # An answer without a text or a call goes back, too.
                        history += answer + [user(self.script(""))]
                        history += turn(self, history, stream) + [user(self.script("yes"))]
                        self.assertEqual(text(turn(self, history, stream)), "yes")

    def test_a_reasoning_item_comes_back_without_its_content(self):
        """Codex sends only `encrypted_content`."""
        self.serve()
        history = [{"role": "user", "content": self.script("<think>\nsecret thought\n</think>\n\nfirst")}]
        answer = self.responses_turn(history, True)
        self.assertEqual([item["type"] for item in answer], ["reasoning", "message"])
        del answer[0]["content"]
        more = [{"role": "user", "content": self.script("second")}]

        def prompt_tokens(items):
            _, text = self.good("/v1/responses", {"model": "demo", "input": items, "temperature": 0, "max_output_tokens": 50})
            reply = json.loads(text)
            self.assertEqual(reply["output"][-1]["content"][0]["text"], "second")
            return reply["usage"]["input_tokens"]
        # The padding of the last message hides a longer prompt in front of nothing: lengths differ by the thought alone.
        without = prompt_tokens(history + answer[1:] + more)
        self.assertEqual(prompt_tokens(history + answer + more), without + len("secret thought") + 2)

    def test_broken_arguments_are_empty_and_named(self):
        self.serve()
        body = {"temperature": 0, "max_tokens": 50, "tools": TOOLS, "messages": [
            {"role": "system", "content": "A"}, {"role": "developer", "content": "B"},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\": \"SECRET"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": self.script("yes")}]}]}
        headers, text = self.good("/v1/chat/completions", body)
        self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], "yes")
        self.assertEqual(headers["X-Ignored-Fields"], "messages[].tool_calls[].function.arguments")

    def test_system_messages_between_turns(self):
        self.serve(STRICT)
        history = [{"role": "system", "content": "A"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
                   {"role": "assistant", "content": "c"}, {"role": "system", "content": "now"},
                   {"role": "assistant", "content": "d"}, {"role": "user", "content": self.script("yes")}]
        for stream in (False, True):
            self.assertEqual(self.chat_turn(history, stream)[0]["content"], "yes")

    def claude_code(self, change, said, stream=False):
        """A body of Claude Code 2.1."""
        return {"model": "demo", "max_tokens": 100, "temperature": 0, "stream": stream,
                "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.37.f3a; cc_entrypoint=cli; cch={change};"},
                           {"type": "text", "text": "You are Claude Code. " + "Be brief. " * 50,
                            "cache_control": {"type": "ephemeral"}}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": self.script(said),
                                                           "cache_control": {"type": "ephemeral"}}]}],
                "tools": [{"name": "Read", "description": "d", "input_schema": PARAMETERS},
                          {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
                "metadata": {"user_id": "user_0_account__session_0"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}

    def test_prompts_of_claude_code_are_found_again(self):
        self.serve()
        for stream in (False, True):
            counted = json.loads(self.good("/v1/messages/count_tokens", {
                key: value for key, value in self.claude_code("0", "yes").items()
                if key in ("model", "system", "messages", "tools")})[1])["input_tokens"]
            usages = []
            # A reply may end before its prompt is in the cache: later ones find it.
            for change in range(10):
                if len(usages) > 1 and usages[-1]["cache_read_input_tokens"] > 0:
                    break
                headers, text = self.good("/v1/messages", self.claude_code(f"{change:05}{stream}", "yes", stream))
                self.assertEqual(headers["X-Ignored-Fields"], "tools[].web_search_20250305, context_management")
                if stream:
                    told = events(text)
                    self.assertEqual("".join(event["delta"].get("text", "") for event in told
                                             if event["type"] == "content_block_delta"), "yes")
                    begun = told[0]["message"]["usage"]
                    usages.append(told[-2]["usage"])
                    self.assertEqual({**begun, "output_tokens": 0}, {**usages[-1], "output_tokens": 0})
                else:
                    self.assertEqual(json.loads(text)["content"], [{"type": "text", "text": "yes"}])
                    usages.append(json.loads(text)["usage"])
                self.assertEqual(counted, usages[-1]["input_tokens"] + usages[-1]["cache_read_input_tokens"]
                                 + usages[-1]["cache_creation_input_tokens"])
            self.assertGreater(usages[-1]["cache_read_input_tokens"], counted // 2)
            if not stream:
                self.assertEqual(usages[0]["cache_read_input_tokens"], 0)

    def test_one_of_a_thousand_tools_is_forced(self):
        self.serve(TEMPLATE.replace("{{ tools | tojson }}", ""))  # a context of 16K bytes has no room for them
        names = [f"mcp__server_{i % 7}__tool_{i}" for i in range(1000)]
        tools = [{"name": name, "input_schema": PARAMETERS} for name in names]
        for choice, name in (({"type": "any"}, names[777]), ({"type": "tool", "name": names[3]}, names[3])):
            call = "<tool_call>\n" + json.dumps({"name": name, "arguments": {"path": "x"}}) + "\n</tool_call>"
            headers, text = self.good("/v1/messages", {
                "model": "demo", "max_tokens": 200, "temperature": 0, "tools": tools, "tool_choice": choice,
                "messages": [{"role": "user", "content": self.script(call)}]})
            (block,) = json.loads(text)["content"]
            self.assertEqual((block["type"], block["name"], block["input"]), ("tool_use", name, {"path": "x"}))
            self.assertEqual("X-Baton-Schema-Unenforced" in headers, choice["type"] == "any")

    def budget_reply(self, stream=False, **options):
        """Reasoning, and what is said behind it, of one that thinks for 300 tokens."""
        body = {"messages": [{"role": "user", "content": self.script("<think>" + THOUGHT + "</think>yes")}],
                "temperature": 0, "max_tokens": 400, "stream": stream, **options}
        headers, text = self.good("/v1/chat/completions", body)
        self.assertNotIn("X-Ignored-Fields", headers)
        messages = ([choice["delta"] for chunk in events(text) for choice in chunk["choices"]] if stream
                    else [json.loads(text)["choices"][0]["message"]])
        return tuple("".join(message.get(key) or "" for message in messages) for key in ("reasoning_content", "content"))

    def test_a_reasoning_ends_with_its_budget(self):
        self.serve()
        for stream in (False, True):
            self.assertEqual(self.budget_reply(stream), (THOUGHT, "yes"))
            for budget in (0, 1, 50, 299):
                # The model has said one token less of its script: the mark took its place.
                cut = (THOUGHT[:budget], THOUGHT[budget + 1:] + "</think>yes")
                self.assertEqual(self.budget_reply(stream, thinking_token_budget=budget), cut)
            self.assertEqual(self.budget_reply(stream, thinking={"type": "enabled", "budget_tokens": 50}),
                             (THOUGHT[:50], THOUGHT[51:] + "</think>yes"))
            for budget in (-1, 300, 301, 5000):  # its own end comes first
                self.assertEqual(self.budget_reply(stream, thinking_token_budget=budget), (THOUGHT, "yes"))
        body = {"model": "demo", "max_tokens": 400, "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 100},
                "messages": [{"role": "user", "content": self.script("<think>" + THOUGHT + "</think>yes")}]}
        content = json.loads(self.good("/v1/messages", body)[1])["content"]
        self.assertEqual(content[0], {"type": "thinking", "thinking": THOUGHT[:100], "signature": ""})
        self.assertEqual(content[1]["text"], THOUGHT[101:] + "</think>yes")
        # Behind it, a schema holds the answer.
        schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
        thought, answer = self.budget_reply(thinking_token_budget=50, response_format={
            "type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
        self.assertEqual((thought, json.loads(answer)), (THOUGHT[:50], {"a": 1}))
        # Without a reasoning there is nothing to end.
        self.assertEqual(json.loads(self.good("/v1/chat/completions", {
            "messages": [{"role": "user", "content": self.script("x" * 90)}], "temperature": 0, "max_tokens": 400,
            "thinking_token_budget": 20})[1])["choices"][0]["message"]["content"], "x" * 90)

    def test_a_budget_outlives_workers(self):
        """Behind a hand-off, and whichever worker dies at whichever token, the same token is forced."""
        self.serve(workers=PAIR)
        whole = (THOUGHT[:150], THOUGHT[151:] + "</think>yes")
        self.assertEqual(self.budget_reply(thinking_token_budget=150), whole)
        for name, after in (("decode0", 100), ("decode0", 150), ("prefill0", 150), ("decode0", 151), ("decode0", 152)):
            got = []
            body = {"messages": [{"role": "user", "content": self.script("<think>" + THOUGHT + "</think>yes")}],
                    "temperature": 0, "max_tokens": 400, "stream": True, "thinking_token_budget": 150}
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            self.addCleanup(connection.close)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            for line in connection.getresponse():
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    got.append(choice["delta"])
                if len(got) == after:
                    self.cluster.kill(name)
                    self.cluster.start(name)
            self.assertEqual(tuple("".join(delta.get(key) or "" for delta in got)
                                   for key in ("reasoning_content", "content")), whole, (name, after))

    def test_codex(self):
        """A body of codex-rs: tools that are no functions, and items of such in its history."""
        self.serve()
        items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
                 {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
                 {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"},
                 {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
                 {"type": "custom_tool_call", "call_id": "c9", "name": "apply_patch", "input": "*** Begin Patch"},
                 {"type": "custom_tool_call_output", "call_id": "c9", "output": "ok"},
                 {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
                 {"type": "message", "role": "user", "content": [{"type": "input_text", "text": self.script(CALL + "\n" + CALL)}]}]
        body = {"model": "demo", "instructions": "You are Codex.", "input": items, "tool_choice": "auto", "parallel_tool_calls": True,
                "tools": [{"type": "function", "name": "read_file", "description": "d", "strict": False, "parameters": PARAMETERS},
                          {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
                          {"type": "web_search", "external_web_access": True}, {"type": "local_shell"},
                          {"type": "image_generation", "output_format": "png"},
                          {"type": "namespace", "name": "mcp__x__", "description": "d", "tools": []}],
                "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "01997", "text": {"verbosity": "medium"}, "temperature": 0, "stream": True}
        headers, text = self.good("/v1/responses", body)
        last = events(text)[-1]
        self.assertEqual(last["type"], "response.completed")
        self.assertEqual([(item["type"], json.loads(item["arguments"])) for item in last["response"]["output"]],
                         [("function_call", ARGUMENTS)] * 2)
        self.assertEqual(len({item["call_id"] for item in last["response"]["output"]}), 2)
        for name in ("input[].web_search_call", "input[].custom_tool_call", "tools[].custom", "tools[].web_search",
                     "tools[].local_shell", "tools[].image_generation", "tools[].namespace"):
            self.assertIn(name, headers["X-Ignored-Fields"].split(", "))


if __name__ == "__main__":
    unittest.main()
