"""JSON as the tutorial publishes its configurations: with comments (# or // to the end of the line) and a
comma before a closing bracket. Both become spaces, so that errors name the right line."""

import json
import pathlib
import re

MAX_BYTES = 1 << 20

# A string, a comment, or a comma with nothing but space and comments before a bracket.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|(?:#|//)[^\n]*')
_LAST_COMMA = re.compile(r'"(?:\\.|[^"\\\n])*"|,(?=\s*[}\]])')


def _blank(match):
    text = match.group()
    return text if text.startswith('"') else " " * len(text)


def _once(pairs):
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"the key {twice!r} stands there twice")
    return dict(pairs)


def parse(text):
    """The value; ValueError with line and column."""
    try:
        return json.loads(_LAST_COMMA.sub(_blank, _PARTS.sub(_blank, text)), object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def load(path):
    """The value of a file; ValueError names the file, OSError says why it cannot be read."""
    path = pathlib.Path(path)
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: more than {MAX_BYTES} bytes")
    try:
        return parse(data.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
