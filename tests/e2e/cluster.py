"""Real processes for tests: a memory process, a scheduler, front ends and workers in a folder of their own.

    with Cluster(workers=[("prefill0", "prefill"), ("decode0", "decode")]) as cluster:
        stream = cluster.stream("Hello", max_tokens=50)
        cluster.kill("decode0"); cluster.start("decode0")
        stream.finish()

No supervisor runs: a test decides who dies and who comes back.
"""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

SOURCE = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("BATON_BUILD_DIR", SOURCE / "build" / "cpu")).resolve()
BIN = BUILD / "bin"
DEMO_MODEL = SOURCE / "demo" / "model"
# The same tests on GPUs: BATON_TEST_DEVICE=cuda. They compare tokens exactly, hence deterministic mode.
DEVICE = os.environ.get("BATON_TEST_DEVICE", "cpu")
DEVICE_OPTIONS = {"cpu": {}, "cuda": {"device": "cuda", "deterministic": True}}[DEVICE]
# BATON_TEST_CHECK_PULLS=1: every copy between pools is compared with what was computed.
CHECK_PULLS = os.environ.get("BATON_TEST_CHECK_PULLS", "") == "1"
PAIR = [("prefill0", "prefill"), ("decode0", "decode")]
MIXED = [("mixed0", "mixed")]
# How long threads stay awake after work, in every process.
AWAKE_MS = int(os.environ.get("BATON_TEST_AWAKE_MS", "0"))
# Sanitizers and a busy machine make everything slower; bounds are multiplied by this.
PATIENCE = float(os.environ.get("BATON_TEST_PATIENCE", "1"))


def wait_until(condition, seconds, what):
    """Polls until `condition` gives something true, and returns that."""
    end = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds * PATIENCE} s: {what}")
        time.sleep(0.02)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stream:
    """One streamed completion, read by a thread of its own."""

    def __init__(self, port, path, body, address="127.0.0.1"):
        self.body = body
        self.text = ""
        self.pieces = 0            # events that carried text
        self.arrivals = []         # monotonic time of each event
        self.usage = None
        self.finish_reason = None
        self.names = set()         # of the model, as the events have it
        self.error = None
        self.done = threading.Event()
        self._connection = http.client.HTTPConnection(address, port, timeout=300)
        self._path = path
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._connection.request("POST", self._path, json.dumps(self.body),
                                     {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            if response.status != 200:
                self.error = f"{response.status}: {response.read().decode()}"
                return
            for line in response:
                self._line(line.decode().strip())
        except Exception as failure:  # the test looks at .error
            self.error = self.error or repr(failure)
        finally:
            self.done.set()
            self._connection.close()

    def _line(self, line):
        if not line.startswith("data:") or line == "data: [DONE]":
            return
        event = json.loads(line[5:])
        if "error" in event:
            self.error = json.dumps(event["error"])
            return
        if "model" in event:
            self.names.add(event["model"])
        if event.get("usage"):
            self.usage = event["usage"]
        for choice in event.get("choices", []):
            piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
            if piece:
                self.text += piece
                self.pieces += 1
                self.arrivals.append(time.monotonic())
            if choice.get("finish_reason"):
                self.finish_reason = choice["finish_reason"]

    def wait_pieces(self, count, seconds=30):
        wait_until(lambda: self.pieces >= count or self.done.is_set(), seconds,
                   f"{count} events, {self.pieces} came; error {self.error}")

    def leave(self):
        """Drops the connection in the middle."""
        with contextlib.suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.done.wait(5)

    def finish(self, seconds=120):
        """Waits for the end; returns (text, completion tokens, finish reason)."""
        if not self.done.wait(seconds * PATIENCE):
            raise AssertionError(f"stream did not end; {self.pieces} events so far")
        if self.error:
            raise AssertionError(f"stream ended with {self.error}")
        if self.usage is None:
            raise AssertionError("stream ended without a usage event")
        return self.text, self.usage["completion_tokens"], self.finish_reason


class Cluster:
    def __init__(self, workers=PAIR, frontends=("frontend0",), model=DEMO_MODEL, scheduler=None,
                 frontend=None, worker=None, per_worker=None, fake=False, build=None, top=None,
                 memory=True, host=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-e2e-"))
        self.bin = pathlib.Path(build or BIN)
        self.processes = {}
        self.pids = set()
        self.frontends = {name: free_port() for name in frontends}
        self.trace_file = self.folder / "trace.jsonl"
        worker = {"pool_mib": 64, "fake": fake, **({} if fake else DEVICE_OPTIONS),
                  **({"check_pulls": True} if CHECK_PULLS else {}), **(worker or {})}
        self.workers = [name for name, _ in workers]
        # A worker of several ranks is the processes NAME.0, NAME.1, ...
        self.ranks = {name: (per_worker or {}).get(name, {}).get("ranks", worker.get("ranks", 1))
                      for name in self.workers}
        # The memory processes: of CPUs, or of the GPUs that workers name, auto being 0 where one worker says it.
        on_gpus = DEVICE == "cuda" and not fake
        gpus = sorted({gpu for name, _ in workers
                       for gpu in str({**worker, **(per_worker or {}).get(name, {})}.get("gpu", 0)).split(",")})
        self.keepers = [f"memory-gpu{gpu}" for gpu in gpus] if on_gpus else ["memory"]
        self.keeper = self.keepers[0]
        self.memory = memory
        # Of hosts.py: where all processes run. Their front ends listen on its address.
        self.host = host
        self.address = host.address if host else "127.0.0.1"
        config = {
            "run_dir": str(self.folder / "run"),
            "model": str(model),
            "model_name": "demo",
            "awake_ms": AWAKE_MS,
            **(top or {}),
            "scheduler": scheduler or {},
            "frontend": {**({"host": self.address} if host else {}), **(frontend or {})},
            "worker": worker,
            "workers": [{"name": name, "role": role, **(per_worker or {}).get(name, {})}
                        for name, role in workers],
        }
        self.config = self.folder / "config.yaml"
        self.config.write_text(json.dumps(config, indent=1))  # JSON is YAML

    # ---- processes
    def processes_of(self, worker):
        ranks = self.ranks[worker]
        return [worker] if ranks == 1 else [f"{worker}.{rank}" for rank in range(ranks)]

    def start_all(self):
        workers = [process for worker in self.workers for process in self.processes_of(worker)]
        for name in [*(self.keepers if self.memory else []), "scheduler", *workers, *self.frontends]:
            self.start(name)

    def __enter__(self):
        try:
            self.start_all()
            self.wait_ready()
        except BaseException:
            self.print_logs()
            self.stop()
            raise
        return self

    def __exit__(self, kind, *_):
        damaged = [line for line in (self.folder / "scheduler.log").read_text(errors="replace").splitlines()
                   if "DAMAGED" in line] if CHECK_PULLS else []
        if kind is not None:
            self.print_logs()
        self.stop()
        if damaged and kind is None:
            raise AssertionError("\n".join(damaged))

    def start(self, name):
        if name in ("memory", "scheduler"):
            command = [self.bin / f"baton-{name}"]
        elif name.startswith("memory-gpu"):
            command = [self.bin / "baton-memory", "--gpu", name.removeprefix("memory-gpu")]
        elif name in self.frontends:
            command = [self.bin / "baton-frontend", "--name", name,
                       "--port", str(self.frontends[name])]
        else:
            worker, _, rank = name.partition(".")
            command = [self.bin / "baton-worker", "--name", worker, *(["--rank", rank] if rank else [])]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*(self.host.prefix if self.host else []), *map(str, command), "--config", str(self.config)],
                stdout=log, stderr=log, cwd=self.folder)
        self.pids.add(self.processes[name].pid)

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        self.processes[name].wait()

    def kill_host(self):
        """Every process on the cluster's host at once, those that its processes have started, too."""
        self.host.kill()
        for process in self.processes.values():
            process.wait()

    def restart(self, name):
        self.kill(name)
        self.start(name)

    def freeze(self, name, seconds):
        self.signal(name, signal.SIGSTOP)
        time.sleep(seconds)
        self.signal(name, signal.SIGCONT)

    def twin_pid(self, name):
        """The process that holds the sockets of front end `name`."""
        return int((self.folder / "run" / f"{name}.twin.pid").read_text().split()[0])

    def stop(self):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for name in self.frontends:
            with contextlib.suppress(OSError, ValueError):
                os.kill(self.twin_pid(name), signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        # Killed workers cannot unlink (a successor would have done it); others' pools stay.
        for segment in pathlib.Path("/dev/shm").glob("baton-*"):
            if any(f"-{pid}-" in segment.name for pid in self.pids):
                with contextlib.suppress(FileNotFoundError):
                    segment.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def print_logs(self, lines=40):
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.name}")
            print("\n".join(log.read_text(errors="replace").splitlines()[-lines:]))

    # ---- readiness and the admin socket
    def wait_ready(self, seconds=60):
        for name in self.workers:
            wait_until(lambda: self.worker_state(name) == "ready", seconds, f"{name} ready")
        for name in self.frontends:
            wait_until(lambda: self.get("/health", name)[0] == 200, seconds, f"{name} healthy")

    def ctl(self, command, seconds=10):
        return self.ask_admin("admin.sock", command, seconds)

    def ask_admin(self, name, command, seconds):
        """What the scheduler answers that listens at `name` in the run directory."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(seconds)
            admin.connect(str(self.folder / "run" / name))
            admin.sendall(command.encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n\n") and answer != b"\n":
                data = admin.recv(65536)
                if not data:
                    break
                answer += data
        return answer.decode()[:-1]

    def show(self, what):
        return json.loads(self.ctl(f"show {what} json"))

    def baton_ctl(self, *words):
        """The program itself: (exit code, what it printed, what it complained about)."""
        command = [self.bin / "baton-ctl", "--socket", self.folder / "run" / "admin.sock", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return done.returncode, done.stdout, done.stderr

    def kept(self):
        """What the memory process keeps, by its name."""
        code, text, complaint = self.baton_ctl("show", "memory", "json")
        assert code == 0, complaint
        return {entry["what"]: entry for entry in json.loads(text)}

    def worker_state(self, name):
        process = self.processes.get(self.processes_of(name)[0] if name in self.ranks else name)
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{name} has exited with {process.returncode}")
        with contextlib.suppress(OSError, ValueError):
            for worker in self.show("workers"):
                if worker["name"] == name:
                    return worker["state"]
        return None

    def pools_at_rest(self):
        """True when no block of any pool is named: each is free, or only cached."""
        try:
            pools = self.show("kv")
        except (OSError, ValueError):
            return False
        return bool(pools) and all(
            pool["owned"] == 0 and pool["fenced"] == 0 and
            pool["free"] + pool["cached"] == pool["total"]
            for pool in pools)

    def assert_at_rest(self, seconds=15):
        """No request, no block, no fence, and the workers' own tables agree."""
        wait_until(lambda: self.show("requests") == [] and self.pools_at_rest(), seconds,
                   f"at rest: {self.show('kv')} {self.show('requests')[:3]}")
        answer = self.ctl("audit")
        if answer != "ok\n":
            raise AssertionError(f"audit: {answer}")

    def trace(self):
        return [json.loads(line) for line in self.trace_file.read_text().splitlines()]

    # ---- requests
    def get(self, path, frontend=None):
        port = self.frontends[frontend] if frontend else next(iter(self.frontends.values()))
        connection = http.client.HTTPConnection(self.address, port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def post(self, path, body, frontend=None, timeout=120):
        """Whole reply: (status, parsed JSON)."""
        port = self.frontends[frontend] if frontend else next(iter(self.frontends.values()))
        connection = http.client.HTTPConnection(self.address, port, timeout=timeout)
        try:
            connection.request("POST", path, json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def stream(self, prompt, frontend=None, **parameters):
        port = self.frontends[frontend] if frontend else next(iter(self.frontends.values()))
        body = {"prompt": prompt, "stream": True, "stream_options": {"include_usage": True},
                **parameters}
        return Stream(port, "/v1/completions", body, self.address)
