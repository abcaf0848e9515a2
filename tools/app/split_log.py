"""Copies a supervisor's output, on stdin, into two files: a line for each request into the access log, the
rest into the error log.

    baton-supervisor ... 2>&1 | tools/app/split_log.py ACCESS ERROR
"""

import logging
import logging.handlers
import re
import signal
import sys

MAX_FILE_BYTES = 64 << 20
KEPT_FILES = 2

# frontend0 | 2026-11-22T03:47:06.786 info frontend0 <request id> POST /v1/completions 400 client=... ms=12.3
REQUEST = re.compile(r"frontend\S*\s*\| \S+ info \S+ \S+ [A-Z-]+ \S+ (?:\d{3} )?client=")


def open_file(path):
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES,
                                                   encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with what it reads
    access, error = open_file(sys.argv[1]), open_file(sys.argv[2])
    for raw in sys.stdin.buffer:
        line = raw.decode("utf-8", "replace").rstrip("\n")
        record = logging.LogRecord("split", logging.INFO, "", 0, line, None, None)
        (access if REQUEST.match(line) else error).emit(record)


if __name__ == "__main__":
    main()
