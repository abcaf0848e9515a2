"""Writes goldens.json: what `transformers` makes of the templates in this folder.

    python3 tests/golden/chat_templates/make_goldens.py     # needs transformers 5 and jinja2

Each case is a request body of /v1/chat/completions; the test takes it through the front end's parser
and its renderer. "renders" holds [template, body, text], or [template, body, null, part of the error];
"ids" holds [folder of ../tokenizers, template's text, body, token ids].
"""

import functools
import json
import pathlib

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather <now>, \"there\" & then. é",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "A town"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1.0}},
        "at": {"type": "object", "properties": {"z": {"type": ["number", "null"]}, "a": {}}}}}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}

# Turns as four families mark them, with the special tokens of the small tokenizers beside this folder.
TURNS = {
    "llama2": "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]"
              "{% else %} {{ m.content | trim }} </s>{% endif %}{% endfor %}",
    "llama3": "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
              "{{ m.content | trim }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
               "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
    "qwen2": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
             "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
    "deepseek": "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
                "{% else %}{{ m.content }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}",
}
# Where the renderer says it otherwise.
OUR_WORDS = {"continue_final_message is set but the final message does not": "so that it cannot be continued"}
ID_BODIES = ("plain", "spaces", "empty", "system", "markup", "thought", "continued", "variables")


def call(name, arguments, id="abc123def"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


BODIES = {
    "plain": {"messages": [{"role": "user", "content": "Hello"}]},
    "spaces": {"messages": [{"role": "user", "content": "  Hello \n\n there \t\n"}]},
    "empty": {"messages": [{"role": "user", "content": ""}]},
    "system": {"messages": [
        {"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "你是谁 👋 é"}]},
    "two systems": {"messages": [
        {"role": "system", "content": "One"}, {"role": "user", "content": "a"},
        {"role": "system", "content": "Two"}, {"role": "user", "content": "b"}]},
    "markup": {"messages": [{"role": "user", "content": "{{ 1 + 1 }} {% if %} {# c #} <b>&amp;</b>"}]},
    "wrong order": {"messages": [{"role": "assistant", "content": "I begin"}]},
    "no prompt": {"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": False},
    "continued": {"messages": [{"role": "user", "content": "Count"},
                               {"role": "assistant", "content": "One, two,"}],
                  "continue_final_message": True},
    "continued, trimmed": {"messages": [{"role": "user", "content": "Count"},
                                        {"role": "assistant", "content": "One, two,  "}],
                           "continue_final_message": True},
    "thought": {"messages": [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "<think>\nOne\n</think>\n\nA"},
        {"role": "user", "content": "2"},
        {"role": "assistant", "content": "B", "reasoning_content": "Two\n"}]},
    "thought, no prompt": {"add_generation_prompt": False, "messages": [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "<think>\nOne\n</think>\n\nA"}]},
    "variables": {"messages": [{"role": "user", "content": "Hello"}], "chat_template_kwargs": {
        "enable_thinking": False, "date_string": "1 May 2026", "colour": "red",
        "options": {"depth": 3}, "eos_token": "<|end|>"}},
    "tools": {"messages": [{"role": "user", "content": "Weather?"}], "tools": [WEATHER, CLOCK]},
    "called": {"tools": [WEATHER], "messages": [
        {"role": "system", "content": "Call."}, {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None,
         "tool_calls": [call("get_weather", '{"place": "Köln", "days": [1, 2.50, 1e3], "at": {"z": null, "a": 1}}')]},
        {"role": "tool", "tool_call_id": "abc123def", "content": "{\"t\": 12}"},
        {"role": "assistant", "content": "12 °C"}, {"role": "user", "content": "Thanks"}]},
    "called twice": {"messages": [
        {"role": "user", "content": "Both", "name": "ann"},
        {"role": "assistant", "content": "Wait.",
         "tool_calls": [call("clock", "{}", "000000001"), call("clock", '{"zone": "b", "a": true}', "000000002")]},
        {"role": "tool", "tool_call_id": "000000001", "name": "clock", "content": "10:00"},
        {"role": "tool", "tool_call_id": "000000002", "name": "clock", "content": "11:00"}]},
}


def conversation(body):
    """The body's fields as apply_chat_template() takes them."""
    messages = json.loads(json.dumps(body["messages"]))
    for message in messages:
        for made in message.get("tool_calls", []):
            made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    final = body.get("continue_final_message", False)
    return messages, {"tools": body.get("tools"), "continue_final_message": final,
                      "add_generation_prompt": body.get("add_generation_prompt", not final),
                      **body.get("chat_template_kwargs", {})}


def ids_of(folder, template, body):
    messages, options = conversation(body)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE.parent / "tokenizers" / folder / "tokenizer.json"))
    return tokenizer.apply_chat_template(messages, chat_template=template, return_dict=False, **options)


@functools.cache
def tokenizer():
    """One with the special tokens, for what needs no ids."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, "x")), **SPECIAL)


def goldens_of(folder):
    """What is made of the templates of `folder`, all but "ids"."""
    renders = []
    for path in sorted(folder.glob("*.jinja")):
        for name, body in BODIES.items():
            messages, options = conversation(body)
            if "message.thinking" in path.read_text():  # gpt-oss's name of it
                messages = [{**m, "thinking": m["reasoning_content"]} if "reasoning_content" in m else m
                            for m in messages]
            if "tools" in body and "tools" not in path.read_text():
                continue  # the front end refuses tools that a template would not show
            try:
                text = tokenizer().apply_chat_template(messages, chat_template=path.read_text(),
                                                       tokenize=False, **options)
                renders.append([path.stem, name, text])
            except Exception as error:
                refusal = str(error)[:60]
                renders.append([path.stem, name, None, OUR_WORDS.get(refusal, refusal)])
    return {"special": SPECIAL, "bodies": BODIES, "renders": renders}


def main():
    goldens = goldens_of(HERE)
    ids = [[folder, template, name, ids_of(folder, template, BODIES[name])]
           for folder, template in TURNS.items() for name in ID_BODIES]
    lines = ",\n".join(json.dumps(render, ensure_ascii=False) for render in goldens["renders"])
    bodies = ",\n".join(f"{json.dumps(name)}: {json.dumps(body, ensure_ascii=False)}"
                        for name, body in BODIES.items())
    text = f'{{"special": {json.dumps(SPECIAL)},\n"bodies": {{\n{bodies}}},\n"renders": [\n{lines}],\n' \
           f'"ids": [\n' + ",\n".join(json.dumps(made, ensure_ascii=False) for made in ids) + "]}\n"
    (HERE / "goldens.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
