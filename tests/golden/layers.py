"""Activations of a forward pass, part by part, against a reference. Standard library only.

A file of activations is what `baton-bench-worker --dump` and make_layers.py write: safetensors with F32 tensors
[tokens, columns], in the order in which a model computes them, and "tokens".
"""

import array
import json
import math
import pathlib
import struct

FLOOR = 1e-4  # what fp32 itself is allowed to be off, as a share of a part's size


def read(path):
    """{part: flat array of floats} in the file's order, and the tokens."""
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    parts = {}
    for name, about in header.items():
        begin, end = (8 + length + at for at in about["data_offsets"])
        parts[name] = array.array("i" if about["dtype"] == "I32" else "f", data[begin:end])
    return parts, list(parts.pop("tokens"))


def write(path, parts, columns, tokens):
    """`parts`: {part: flat floats}, `columns`: {part: their number}."""
    header, data = {}, bytearray()
    for name, values in [*parts.items(), ("tokens", tokens)]:
        begin = len(data)
        data += array.array("i" if name == "tokens" else "f", values).tobytes()
        header[name] = {"dtype": "I32" if name == "tokens" else "F32",
                        "shape": [len(tokens)] + ([columns[name]] if name in columns else []),
                        "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


def zero_row(file, tensor, row):
    """A fault to be found: one row of a matrix in a safetensors file becomes zeros."""
    data = bytearray(pathlib.Path(file).read_bytes())
    length, = struct.unpack_from("<Q", data)
    about = json.loads(data[8:8 + length])[tensor]
    begin, end = (8 + length + at for at in about["data_offsets"])
    bytes_a_row = (end - begin) // about["shape"][0]
    begin += row * bytes_a_row
    data[begin:begin + bytes_a_row] = bytes(bytes_a_row)
    pathlib.Path(file).write_bytes(data)


def size(values):
    """(largest, root of the mean square)"""
    return max(map(abs, values)), math.sqrt(math.fsum(v * v for v in values) / len(values))


def distance(a, b):
    if len(a) != len(b):
        return math.inf, math.inf
    return size([x - y for x, y in zip(a, b)])


def judge(errors, offs, sizes):
    """`errors`, `offs`, `sizes`: {part: (largest, root of the mean square)} of what is judged, of what a rounded
    reference is off, of the reference itself. A bound is twice the second and FLOOR of the third.

    Returns the lines of a table, and the name of the first part that is out of bounds (None: none is)."""
    lines = [f"{'part':20} {'off by at most':>26} {'root of mean square':>26}"]
    first = None
    if list(errors) != list(sizes):
        return [f"parts {list(errors)} where {list(sizes)} were expected"], "the list of parts"
    for part, error in errors.items():
        bounds = [2 * off + FLOOR * whole for off, whole in zip(offs[part], sizes[part])]
        good = all(e <= b for e, b in zip(error, bounds))  # a NaN is not
        first = first or (None if good else part)
        lines.append(f"{part:20} " + " ".join(f"{e:11.3g} of {b:<11.3g}" for e, b in zip(error, bounds)) +
                     ("" if good else "  WRONG"))
    return lines, first
