"""Hosts on one machine: network namespaces, each with an address of its own and a cable to this one.

    with Host() as first, Host() as second:
        with Cluster(host=first, ...) as cluster: ...     # its front end listens on first.address
        first.kill()          # every process there, at once: SIGKILL
        first.unplug()        # nothing answers any more, not even with a refusal; first.plug() ends it

Made with `ip netns` and a veth pair (iproute2), as root.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time

_numbers = itertools.count()


def missing():
    """Why there can be no hosts here; None: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "there is no `ip` (Debian's iproute2)"
    name = f"baton-try-{os.getpid()}"
    for command in (["netns", "add", name], ["netns", "exec", name, "true"], ["link", "add", "name", f"bt{os.getpid()}",
                    "netns", name, "type", "veth", "peer", "name", "eth0", "netns", name]):
        done = subprocess.run(["ip", *command], capture_output=True, text=True)
        if done.returncode != 0:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            return f"ip {' '.join(command)}: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None


class Host(contextlib.AbstractContextManager):
    def __init__(self):
        number = next(_numbers)
        assert number < 64, "64 hosts a test are enough"
        self.name = f"baton-{os.getpid()}-{number}"
        self.cable = f"bt{os.getpid()}-{number}"  # 15 characters at most
        # A net of four addresses out of 198.18.0.0/15, which is set aside for tests: others' tests run beside this one.
        base = (os.getpid() % 512) * 256 + number * 4
        address = lambda last: f"198.{18 + (base >> 16)}.{base >> 8 & 255}.{(base & 255) + last}"
        self.address, self.gateway = address(2), address(1)
        self.prefix = ["ip", "netns", "exec", self.name]
        self.ip("netns", "add", self.name)
        try:
            self.ip("link", "add", "name", self.cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            self.ip("address", "add", self.gateway + "/30", "dev", self.cable)
            self.ip("link", "set", self.cable, "up")
            for words in (["address", "add", self.address + "/30", "dev", "eth0"], ["link", "set", "eth0", "up"],
                          ["link", "set", "lo", "up"]):
                self.ip("-n", self.name, *words)
        except BaseException:
            self.__exit__()
            raise

    def ip(self, *words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"ip {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def pids(self):
        return [int(pid) for pid in self.ip("netns", "pids", self.name).split()]

    def kill(self):
        """As if the power failed, but that the kernel still refuses connections."""
        end = time.monotonic() + 10
        while pids := self.pids():
            assert time.monotonic() < end, f"{self.name}: {pids} do not die"
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def unplug(self):
        """Nothing arrives any more, in either direction, and nobody is told: frames go to a card that is not there."""
        nowhere = ["lladdr", "02:00:00:00:00:01", "nud", "permanent"]
        self.ip("neigh", "replace", self.address, *nowhere, "dev", self.cable)
        self.ip("-n", self.name, "neigh", "replace", self.gateway, *nowhere, "dev", "eth0")

    def plug(self):
        self.ip("neigh", "del", self.address, "dev", self.cable)
        self.ip("-n", self.name, "neigh", "del", self.gateway, "dev", "eth0")

    def __exit__(self, *_):
        with contextlib.suppress(AssertionError):
            self.kill()
        subprocess.run(["ip", "link", "del", self.cable], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)
