"""Folders that tests make, also those whose processes are killed."""

import pathlib
import shutil
import tempfile
import time

from cluster import DEMO_MODEL

# What Hermes and Qwen write, with the demo model's own marks.
CALLING_TEMPLATE = """{{- bos_token }}
{%- if tools %}<|system|>For each call write
<tool_call>
{"name": ..., "arguments": ...}
</tool_call>
{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>' }}
{%- endfor %}
{{- '<|assistant|>' if add_generation_prompt }}"""


def temporary(case, prefix):
    """The path of a new folder, removed when the test case ends."""
    folder = tempfile.mkdtemp(prefix=prefix)
    case.addCleanup(remove, folder)
    return folder


def templated_model(template):
    """The demo model with a chat template instead of its chat_format.json, in a folder that the caller removes."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-templated-"))
    for file in DEMO_MODEL.iterdir():
        if file.name != "chat_format.json":
            (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def remove(folder, seconds=10.0):
    """Removes a folder into which the last children of a killed process may still write."""
    end = time.monotonic() + seconds
    while True:
        try:
            return shutil.rmtree(folder)
        except OSError:  # a file appeared behind rmtree's back, or went
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
