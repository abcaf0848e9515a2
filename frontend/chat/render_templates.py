"""Renders a model's chat templates with Jinja2, in a process of its own.

A template is code out of a model folder, and what it is given are strangers' messages: it runs in
Jinja2's sandbox, in a process that may use little memory and open no file, and that the front end
kills when a render takes too long. What a template sees is what `transformers` shows it in
apply_chat_template(), so that the same template gives the same text.

Descriptor 3 is a socket. A frame is a length (4 bytes, little-endian) and that many bytes of JSON.
    in, once:   {"path": [...], "memory_bytes": n, "output_characters": n, "templates": {name: text}}
    out, once:  {"ready": "3.1.6"} or {"error": "..."}, and the process ends
    in:         {"template": name, "messages": [...], "tools": [...] or null, "variables": {...},
                 "add_generation_prompt": b, "continue_final_message": b, "retry": b}
                retry: messages that the template refuses are rewritten until it takes them
    out:        {"text": "..."} or {"error": "...", "refused": b}; with "last": true the process ends
                refused: the template itself called raise_exception()
"""

import json
import os
import re
import resource
import socket
import struct
import sys
from datetime import datetime

MIN_JINJA = (3, 1, 6)  # older ones have holes in the sandbox
CPU_SECONDS = 2  # of one render, should the front end be unable to kill this process
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
STRICT_ID = re.compile(r"[a-zA-Z0-9]{9}")  # the call ids that Mistral's templates take
SYSTEM_ROLES = ("system", "developer")


def read_exactly(channel, size):
    data = bytearray()
    while len(data) < size:
        piece = channel.recv(min(size - len(data), 1 << 20))
        if not piece:
            os._exit(0)  # the front end is gone, or wants this process no more
        data += piece
    return bytes(data)


def receive(channel):
    (size,) = struct.unpack("<I", read_exactly(channel, 4))
    return json.loads(read_exactly(channel, size))


def send(channel, message):
    data = json.dumps(message, ensure_ascii=False).encode("utf-8")
    channel.sendall(struct.pack("<I", len(data)) + data)


def describe(error):
    text = str(error) or type(error).__name__
    # A lone surrogate would not encode, and a template may raise whole messages.
    return text[:500].encode("utf-8", "replace").decode("utf-8")


def load_jinja(path):
    sys.path[:0] = path
    try:
        import jinja2
        import jinja2.debug  # imported by Jinja2 itself when a template raises: no file opens then
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise RuntimeError(f"Jinja2 is not in {', '.join(path)} ({error}); ./baton setup fetches it")
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit())
    if version < MIN_JINJA:
        raise RuntimeError(f"Jinja2 {jinja2.__version__} is too old; 3.1.6 is needed")
    return jinja2


def make_environment(jinja2):
    class Generation(jinja2.ext.Extension):
        """{% generation %}: marks the assistant's text for training; here it only lets it through."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # A call block and not the body itself: variables set inside stay inside.
            call = self.call_method("_pass_on")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _pass_on(self, caller):
            return caller()

    class Namespace(jinja2.utils.Namespace):
        """namespace(), closed to names that reach into Python."""

        def __init__(*args, **kwargs):
            self, *rest = args
            attributes = dict(*rest, **kwargs)
            for name in attributes:
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(self, attributes)

        def __setitem__(self, name, value):
            Namespace.check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")

    class Dict:
        """dict(), without its class's attributes."""

        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def strftime_now(format):
        return datetime.now().strftime(format)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now,
                               dict=Dict(), namespace=Namespace)
    return environment


def with_reasoning_names(message):
    """Templates read an assistant's reasoning under one of two names: both are given."""
    reasoning = next((message[f] for f in REASONING_FIELDS if message.get(f) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


class Refusal(Exception):
    """The request asks for something that this template cannot do."""


def concatenate(blocks, limit):
    pieces, size = [], 0
    for block in blocks:
        pieces.append(block)
        size += len(block)
        if size > limit:
            raise Refusal(f"the chat template wrote more than {limit} characters")
    return "".join(pieces)


def cut_at_tag(text, final):
    """The rendered text up to the end of the final message."""
    tag = CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise Refusal("the chat template does not write the final message down as it is, so that it "
                      "cannot be continued")
    at = text.rindex(tag)
    whole = text[at:at + len(CONTINUE_TAG)] == CONTINUE_TAG
    return text[:at] if whole else text[:at].rstrip()  # the template trimmed the message


def with_strict_ids(messages):
    """Call ids of nine letters and digits: others are numbered in the order in which they appear."""
    numbers = {}

    def strict(text):
        if not isinstance(text, str) or STRICT_ID.fullmatch(text):
            return text
        return f"call{numbers.setdefault(text, len(numbers)):05}"

    out = []
    for message in messages:
        if message.get("tool_calls"):
            calls = [{**call, "id": strict(call.get("id"))} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        if "tool_call_id" in message:
            message = {**message, "tool_call_id": strict(message["tool_call_id"])}
        out.append(message)
    return out


def joined(texts):
    return "\n\n".join(text for text in texts if text)


class Turns:
    """Collects messages; those that go on with the last one become part of it."""

    def __init__(self):
        self.groups = []  # lists of messages

    def add(self, message, goes_on):
        if goes_on:
            self.groups[-1].append(message)
        else:
            self.groups.append([message])

    def last_role(self):
        return self.groups[-1][0]["role"] if self.groups else None

    def messages(self):
        out = []
        for group in self.groups:
            message = {**group[0], "content": joined(one.get("content") for one in group)}
            reasoning = joined(one.get("reasoning_content") for one in group)
            calls = [call for one in group for call in one.get("tool_calls", ())]
            if reasoning:
                message["reasoning_content"] = reasoning
            if calls:
                message["tool_calls"] = calls
            out.append(message)
        return out


def with_alternating_turns(messages):
    """One system message, at the beginning; later ones are the user's words. Neighbours of one role
    are one message, and what a user says behind the result of a tool is part of it."""
    turns = Turns()
    for message in messages:
        role = message["role"]
        if role in SYSTEM_ROLES:
            message = {**message, "role": "user" if turns.groups else "system"}
        role, last = message["role"], turns.last_role()
        turns.add(message, (role in ("user", "assistant") and role == last)
                  or (role == "user" and last == "tool"))
    return turns.messages()


def with_plain_turns(messages):
    """Only texts of user and assistant in turn, for templates that know no system and no tools."""
    turns = Turns()
    for message in messages:
        texts = [message.get("content")]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            texts.append(json.dumps({"name": function["name"], "arguments": function["arguments"]},
                                    ensure_ascii=False))
        role = "assistant" if message["role"] == "assistant" else "user"
        plain = {"role": role, "content": joined(texts)}
        if message.get("reasoning_content"):
            plain["reasoning_content"] = message["reasoning_content"]
        if role == "assistant" and not turns.groups:
            turns.add({"role": "user", "content": ""}, False)
        turns.add(plain, role == turns.last_role())
    return turns.messages()


# What a template gets that refuses the messages before, each of the request's own messages.
REWRITES = (with_strict_ids,
            lambda messages: with_alternating_turns(with_strict_ids(messages)),
            with_plain_turns)


def render_rewritten(template, request, limit):
    """Some templates raise where others go on: a conversation must not end there."""
    try:
        return render(template, request, limit)
    except (Refusal, MemoryError, RecursionError):
        raise
    except Exception as error:
        if not request.get("retry"):
            raise
        refused = error
    tried = [request["messages"]]
    for rewrite in REWRITES:
        messages = rewrite(request["messages"])
        if messages in tried:
            continue
        tried.append(messages)
        try:
            return render(template, {**request, "messages": messages}, limit)
        except (Refusal, MemoryError, RecursionError):
            raise
        except Exception:
            pass
    raise refused


def render(template, request, limit):
    messages = [with_reasoning_names(message) for message in request["messages"]]
    final = None
    if request["continue_final_message"]:
        final = messages[-1].get("content")
        if not isinstance(final, str):
            raise Refusal("the final message has no content to continue")
        messages[-1] = {**messages[-1], "content": final + CONTINUE_TAG}
    blocks = template.generate(messages=messages, tools=request["tools"], documents=None,
                               add_generation_prompt=request["add_generation_prompt"],
                               **request["variables"])
    text = concatenate(blocks, limit)
    return text if final is None else cut_at_tag(text, final)


def limit_cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def limit(memory):
    """From here on: no large memory, no file written. Before templates are compiled, since Jinja2
    computes what is constant in them."""
    limit_cpu()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def compile_all(jinja2, environment, texts):
    templates = {}
    for name, text in texts.items():
        try:
            templates[name] = environment.from_string(text)
        except jinja2.exceptions.TemplateError as error:
            line = getattr(error, "lineno", None)
            at = f" in line {line}" if line else ""
            raise RuntimeError(f"the chat template '{name}' is wrong{at}: {describe(error)}")
        except (MemoryError, RecursionError, OverflowError) as error:
            raise RuntimeError(f"the chat template '{name}' is too much: {type(error).__name__}")
    return templates


def answer(jinja2, templates, request, output_limit):
    try:
        text = render_rewritten(templates[request["template"]], request, output_limit)
        text.encode("utf-8")
        return {"text": text}
    except UnicodeEncodeError:
        return {"error": "the chat template wrote half a surrogate pair", "refused": False}
    except Refusal as error:
        return {"error": describe(error), "refused": True}
    except MemoryError:
        return {"error": "the chat template ran out of memory", "refused": False, "last": True}
    except RecursionError:
        return {"error": "the chat template calls itself too deeply", "refused": False, "last": True}
    except Exception as error:
        # raise_exception() raises the base class itself.
        refused = type(error) is jinja2.exceptions.TemplateError
        kind = "" if refused else f"{type(error).__name__}: "
        return {"error": kind + describe(error), "refused": refused}


def peak_memory(status):
    """Bytes. getrusage() would tell the peak of the process that this one was forked from, too."""
    for line in os.pread(status, 8192, 0).splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main():
    channel = socket.socket(fileno=3)
    status = os.open("/proc/self/status", os.O_RDONLY)
    setup = receive(channel)
    memory = setup["memory_bytes"]
    try:
        jinja2 = load_jinja(setup["path"])
        datetime.now().strftime("%Z")  # reads the time zone's file
        limit(memory)
        templates = compile_all(jinja2, make_environment(jinja2), setup["templates"])
    except RuntimeError as error:
        send(channel, {"error": describe(error)})
        return
    send(channel, {"ready": jinja2.__version__})
    while True:
        request = receive(channel)
        limit_cpu()
        reply = answer(jinja2, templates, request, setup["output_characters"])
        # What a large render took is not given back whole: a fresh process takes over.
        if peak_memory(status) > memory // 2:
            reply["last"] = True
        send(channel, reply)
        if reply.get("last"):
            return


main()
