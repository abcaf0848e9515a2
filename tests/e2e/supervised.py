"""A pair under baton-supervisor, for tests in which that decides who is started again."""

import contextlib
import json
import os
import shutil
import signal
import subprocess

import cluster
from cluster import Cluster, wait_until

PROGRAMS = ("frontend", "memory", "scheduler", "worker", "ctl", "grammar")


class Supervised(Cluster):
    """A pair under baton-supervisor, whose programs lie in a folder where others can take their place."""

    def __init__(self, **options):
        super().__init__(build="unused", **options)
        self.killed = {}  # by kill(): the last pid of each, until wait_ready() has seen the next
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        shutil.copy(cluster.BIN / "baton-supervisor", self.bin)
        for program in PROGRAMS:
            self.place(program, cluster.BIN)

    def place(self, program, folder):
        """Puts a program where the supervisor looks for it, as a build does."""
        fresh = self.bin / "fresh"
        fresh.symlink_to(folder / f"baton-{program}")
        fresh.replace(self.bin / f"baton-{program}")

    def start_all(self):
        self.supervise()

    def supervise(self):
        """Starts the supervisor, which adopts what an earlier one left."""
        port = next(iter(self.frontends.values()))
        with open(self.folder / "supervisor.log", "ab") as log:
            self.supervisor = subprocess.Popen(
                [self.bin / "baton-supervisor", "--config", self.config, "--frontend.port", str(port)],
                stdout=log, stderr=log)

    def pid(self, name):
        """The process that the supervisor started last under this name; None while there is none."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "run" / f"{name}.pid").read_text())
        return None

    def kill(self, name):
        """The supervisor, which start() brings back, or a process that it brings back itself."""
        if name == "supervisor":
            self.supervisor.kill()
            self.supervisor.wait()
            return
        self.killed[name] = self.pid(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.killed[name], signal.SIGKILL)

    def start(self, name):
        if name == "supervisor":
            self.supervise()

    def wait_ready(self, seconds=60):
        for name, pid in self.killed.items():
            wait_until(lambda: self.pid(name) not in (None, pid), seconds, f"another {name} than {pid}")
        self.killed.clear()
        super().wait_ready(seconds)

    def stop(self):
        self.supervisor.send_signal(signal.SIGINT)
        try:
            self.supervisor.wait(30)
        finally:
            for process in self.known():
                if process["kind"] != "supervisor" and process["pid"]:
                    self.pids.add(process["pid"])
            self.supervisor.kill()
            self.supervisor.wait()
            super().stop()

    def known(self):
        code, text, complaint = self.baton_ctl("show", "processes", "json")
        assert code == 0, complaint
        return json.loads(text)

    def lives(self):
        return {p["name"]: (p["pid"], p["restarts"]) for p in self.known()}

    def restart_words(self, *words, seconds=120):
        command = [self.bin / "baton-ctl", "--socket", self.folder / "run" / "admin.sock", "restart", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * cluster.PATIENCE)
        return done.returncode, done.stdout, done.stderr
