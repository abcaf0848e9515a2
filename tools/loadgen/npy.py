"""numpy's .npy files (format 1.0) without numpy: float32 out; the usual floats and integers in."""

import array
import ast
import math
import pathlib
import struct
import sys

_MAGIC = b"\x93NUMPY"
_MAX_BYTES = 1 << 30
_FORMATS = {"<f2": "e", "<f4": "f", "<f8": "d", "<i4": "i", "<i8": "q"}


def write(path, values, shape):
    """Writes `values` (flat, row by row) as a float32 array of that shape."""
    if math.prod(shape) != len(values):
        raise ValueError(f"{len(values)} values are no array of {shape}")
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    data = array.array("f", values)
    if sys.byteorder != "little":
        data.byteswap()
    pathlib.Path(path).write_bytes(
        _MAGIC + b"\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data.tobytes())


def read(path):
    """(values as a flat sequence, shape). ValueError says what is wrong with the file."""
    path = pathlib.Path(path)
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path}: more than {_MAX_BYTES} bytes")
    data = path.read_bytes()
    if data[:6] != _MAGIC or len(data) < 12 or data[6] not in (1, 2, 3):
        raise ValueError(f"{path}: no .npy file")
    size, at = (struct.unpack("<H", data[8:10])[0], 10) if data[6] == 1 else (
        struct.unpack("<I", data[8:12])[0], 12)
    try:
        header = ast.literal_eval(data[at:at + size].decode("latin-1").strip())
        form, shape = _FORMATS[header["descr"]], tuple(int(n) for n in header["shape"])
        flat = not header["fortran_order"] or len(shape) < 2
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: an array that cannot be read here: {error!r}") from None
    count = math.prod(shape)
    if not flat or len(data) - at - size != count * struct.calcsize("<" + form):
        raise ValueError(f"{path}: its size does not fit its shape {shape}")
    return struct.unpack_from(f"<{count}{form}", data, at + size), shape
