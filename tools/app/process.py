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


def _children(pid):
    """Whatever has this process as its parent."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                yield int(stat.parent.name)
        except (OSError, IndexError):
            pass  # it went just now


def _kill(pid):
    """The process with its group, then the groups of its children: a supervisor's outlive it."""
    children = list(_children(pid))
    for group in (pid, *children):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it went just now, or is in its parent's group


def end(who, patience_s):
    """SIGTERM, then SIGKILL to it and what belongs to it. True if SIGTERM was enough."""
    limit = time.monotonic() + patience_s
    try:
        if alive(who):
            os.kill(who["pid"], signal.SIGTERM)
        while alive(who):
            if time.monotonic() > limit:
                _kill(who["pid"])
                return False
            time.sleep(0.05)
    except ProcessLookupError:
        pass  # it went just now
    return True
