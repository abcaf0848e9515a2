#!/usr/bin/env python3
"""Makes harmony.json: what the parser of OpenAI's own package finds in replies in the harmony format, and what its
renderer makes of conversations. Needs openai-harmony, and its vocabulary, which it downloads or finds in the folder
TIKTOKEN_ENCODINGS_BASE.

    make_harmony.py
"""
import json
import pathlib

from openai_harmony import (Author, Conversation, DeveloperContent, HarmonyEncodingName, Message, ReasoningEffort, Role,
                            SystemContent, ToolDescription, load_harmony_encoding)

A, F, C, M, E, S, R, L = ("<|channel|>analysis", "<|channel|>final", "<|channel|>commentary", "<|message|>", "<|end|>",
                          "<|start|>assistant", "<|return|>", "<|call|>")
REPLIES = [
    f"{A}{M}The user greets.{E}{S}{F}{M}Hello!\n\nHow *are* you?{R}",
    f"{F}{M}Just this.{R}",
    f"{F}{M}Cut off in the mid",
    f"{A}{M}Cut off while it thin",
    f"{A}{M}Need the weather.{E}{S}{C} to=functions.get_weather <|constrain|>json{M}" + '{"city": "Oslo", "days": 3}' + L,
    f"{A}{M}Same, named in front.{E}{S} to=functions.get_weather{C} <|constrain|>json{M}" + '{"city":"Oslo"}' + L,
    f"{A}{M}The type without its mark.{E}{S} to=functions.get_weather{C} json{M}" + '{"city":"Oslo"}' + L,
    f"{A}{M}a{E}{S}{C}{M}**Plan**: I look it up.{E}{S}{C} to=functions.f <|constrain|>json{M}" + "{}" + L,
    f"{A}{M}first{E}{S}{A}{M}second\n{E}{S}{F}{M}done{R}",
    f"{C} to=functions.f <|constrain|>json{M}" + '{"a":1}' + f"{L}{S}{C} to=functions.g <|constrain|>json{M}" +
    '{"b":[2,\n 3]}' + L,
    f"{A}{M}x < y, <| and <|end are letters |>{E}{S}{F}{M}<b>a</b> <|{R}",
    f"{F}{M}Grüße, 你好, 🙂{R}",
    f"{A} to=python{M}print(1)" + L,
    f"{C} to=functions.raw{M}no JSON at all" + L,
    f"{A}{M}{E}{S}{F}{M} leading and trailing \n{R}",
    f"{C} to=functions.a.b-c_d <|constrain|>json{M}" + '{"x":"<|"}' + L,
]

DATE = "2026-11-25"
WEATHER = {"name": "get_weather", "description": "Weather of a place.",
           "parameters": {"type": "object", "required": ["city"],
                          "properties": {"city": {"type": "string", "description": "Where"},
                                         "days": {"type": "integer"}}}}
# Bodies as clients send them.
CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Weather?"}],
     "tools": [{"type": "function", "function": WEATHER}], "reasoning_effort": "high"},
    {"messages": [{"role": "user", "content": "Weather?"},
                  {"role": "assistant", "content": "", "reasoning_content": "Need it.",
                   "tool_calls": [{"id": "call_1", "type": "function",
                                   "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}]},
                  {"role": "tool", "tool_call_id": "call_1", "content": "rain"}],
     "tools": [{"type": "function", "function": WEATHER}], "reasoning_effort": "low"},
    # What was thought for an answer that was given is forgotten.
    {"messages": [{"role": "user", "content": "Hi"},
                  {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."},
                  {"role": "user", "content": "More"}], "reasoning_effort": "medium"},
]


def official(body):
    """The body as the package's own messages."""
    effort = ReasoningEffort[body.get("reasoning_effort", "medium").upper()]
    system = SystemContent.new().with_reasoning_effort(effort).with_conversation_start_date(DATE)
    messages = [Message.from_role_and_content(Role.SYSTEM, system)]
    developer = DeveloperContent.new()
    said = [m["content"] for m in body["messages"] if m["role"] == "system"]
    if said:
        developer = developer.with_instructions(said[0])
    if "tools" in body:
        functions = [tool["function"] for tool in body["tools"]]
        developer = developer.with_function_tools([
            ToolDescription.new(f["name"], f["description"], parameters=f["parameters"]) for f in functions])
    if said or "tools" in body:
        messages.append(Message.from_role_and_content(Role.DEVELOPER, developer))
    callee = None
    for m in body["messages"]:
        if m["role"] == "user":
            messages.append(Message.from_role_and_content(Role.USER, m["content"]))
        elif m["role"] == "tool":
            author = Author.new(Role.TOOL, callee)
            messages.append(Message.from_author_and_content(author, json.dumps(m["content"]))
                            .with_channel("commentary").with_recipient("assistant"))
        elif m["role"] == "assistant":
            def told(text, channel):
                return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)
            messages.append(told(m["reasoning_content"], "analysis"))
            if m["content"]:
                messages.append(told(m["content"], "final"))
            for call in m.get("tool_calls", []):
                callee = f"functions.{call['function']['name']}"
                messages.append(told(call["function"]["arguments"], "commentary").with_recipient(callee)
                                .with_content_type("json"))
    return Conversation.from_messages(messages)


def main():
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    cases = []
    for reply in REPLIES:
        tokens = encoding.encode(reply, allowed_special="all")
        messages = encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT, strict=False)
        texts = {"reasoning": [], "content": []}
        calls = []
        for message in messages:
            text = "".join(part.text for part in message.content)
            recipient = message.recipient or ""
            if recipient.startswith("functions."):
                calls.append({"name": recipient.removeprefix("functions."), "arguments": text})
            elif text:
                texts["reasoning" if recipient or message.channel == "analysis" else "content"].append(text)
        ends = encoding.stop_tokens_for_assistant_actions()
        told = encoding.decode(tokens[:-1] if tokens[-1] in ends else tokens)  # what a stream shows
        cases.append({"reply": told, "calls": calls} | {kind: "\n".join(found) for kind, found in texts.items()})
    path = pathlib.Path(__file__).with_name("harmony.json")
    prompts = [{"body": body,
                "prompt": encoding.decode(encoding.render_conversation_for_completion(official(body), Role.ASSISTANT))}
               for body in CONVERSATIONS]
    path.write_text(json.dumps({"date": DATE, "cases": cases, "prompts": prompts}, indent=1, ensure_ascii=False) + "\n")
    print(f"{path}: {len(cases)} replies, {len(prompts)} prompts")


if __name__ == "__main__":
    main()
