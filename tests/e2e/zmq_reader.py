"""As much of ZeroMQ and MessagePack as a router needs: sockets by libzmq's C functions, values by hand."""

import contextlib
import ctypes
import struct

SUB, DEALER = 2, 5
SUBSCRIBE, LINGER, RCVTIMEO, RCVMORE = 6, 17, 27, 13


class Socket(contextlib.AbstractContextManager):
    def __init__(self, kind, endpoint, timeout_s=10.0):
        self.zmq = ctypes.CDLL("libzmq.so.5", use_errno=True)
        for name in ("zmq_ctx_new", "zmq_socket"):
            getattr(self.zmq, name).restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.zmq.zmq_ctx_new())
        self.socket = ctypes.c_void_p(self.zmq.zmq_socket(self.context, kind))
        self.option(LINGER, struct.pack("i", 0))
        self.timeout(timeout_s)
        if kind == SUB:
            self.option(SUBSCRIBE, b"")
        assert self.zmq.zmq_connect(self.socket, endpoint.encode()) == 0, endpoint

    def __exit__(self, *_):
        self.zmq.zmq_close(self.socket)
        self.zmq.zmq_ctx_term(self.context)

    def option(self, number, value):
        assert self.zmq.zmq_setsockopt(self.socket, number, value, ctypes.c_size_t(len(value))) == 0

    def timeout(self, seconds):
        self.option(RCVTIMEO, struct.pack("i", int(seconds * 1000)))

    def send(self, *frames):
        for i, frame in enumerate(frames):
            more = 2 if i + 1 < len(frames) else 0
            assert self.zmq.zmq_send(self.socket, frame, ctypes.c_size_t(len(frame)), more) == len(frame)

    def receive(self):
        """The frames of a message; None: nothing came in time."""
        frames = []
        while True:
            message = ctypes.create_string_buffer(64)  # a zmq_msg_t
            self.zmq.zmq_msg_init(message)
            if self.zmq.zmq_msg_recv(message, self.socket, 0) < 0:
                return None
            self.zmq.zmq_msg_data.restype = ctypes.c_void_p
            self.zmq.zmq_msg_size.restype = ctypes.c_size_t
            frames.append(ctypes.string_at(self.zmq.zmq_msg_data(message), self.zmq.zmq_msg_size(message)))
            more = self.zmq.zmq_msg_more(message)
            self.zmq.zmq_msg_close(message)
            if not more:
                return frames


def unpack(data):
    """One value of MessagePack, all of `data`."""
    value, end = _value(data, 0)
    assert end == len(data), f"{len(data) - end} bytes too many"
    return value


NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
           0xD3: ">q"}
SIZED = {0xD9: (">B", "text"), 0xDA: (">H", "text"), 0xC4: (">B", "bytes"), 0xDC: (">H", "array"), 0xDD: (">I", "array"),
         0xDE: (">H", "map")}


def _value(data, at):
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if tag in NUMBERS:
        size = struct.calcsize(NUMBERS[tag])
        return struct.unpack(NUMBERS[tag], data[at:at + size])[0], at + size
    if tag in SIZED:
        form, kind = SIZED[tag]
        size = struct.calcsize(form)
        count = struct.unpack(form, data[at:at + size])[0]
        at += size
    else:
        kind, count = ("map", tag & 0xF) if tag < 0x90 else ("array", tag & 0xF) if tag < 0xA0 else ("text", tag & 0x1F)
    if kind in ("text", "bytes"):
        raw = data[at:at + count]
        return raw.decode() if kind == "text" else raw, at + count
    values = []
    for _ in range(count if kind == "array" else 2 * count):
        value, at = _value(data, at)
        values.append(value)
    return values if kind == "array" else dict(zip(values[::2], values[1::2])), at
