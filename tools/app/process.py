"""Background processes that are known by number and start time, so that a number used again by another
process is never taken for ours."""

import os
import pathlib
import signal
import subprocess
import time


def start_time(pid):
    """Clock ticks since boot; None: no such process, or only its corpse."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def uptime_s(started):
    now = float(pathlib.Path("/proc/uptime").read_text().split()[0])
    return max(0.0, now - started / os.sysconf("SC_CLK_TCK"))


def spawn(command, stdin=None, stdout=None, stderr=None):
    """A process in a session of its own, which outlives this one: Popen."""
    null = subprocess.DEVNULL
    return subprocess.Popen([str(word) for word in command], stdin=stdin or null, stdout=stdout or null,
                            stderr=stderr or null, start_new_session=True)


def identity(pid):
    return {"pid": pid, "started": start_time(pid)}


def alive(who):
    return who["started"] is not None and start_time(who["pid"]) == who["started"]


def end(who, patience_s):
    """SIGTERM, then SIGKILL to its whole group. True if SIGTERM was enough."""
    limit = time.monotonic() + patience_s
    try:
        if alive(who):
            os.kill(who["pid"], signal.SIGTERM)
        while alive(who):
            if time.monotonic() > limit:
                os.killpg(who["pid"], signal.SIGKILL)
                return False
            time.sleep(0.05)
    except ProcessLookupError:
        pass  # it went just now
    return True
