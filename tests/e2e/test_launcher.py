"""The launcher as a newcomer meets it: ./baton serve, a chat, a kill, Ctrl-C, and the bad cases."""

import contextlib
import glob
import hashlib
import json
import os
import pathlib
import re
import signal
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import folders
from cluster import Cluster

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BATON = ROOT / "baton"
BUILD = pathlib.Path(os.environ.get("BATON_BUILD_DIR", ROOT / "build" / "cpu"))
QUESTION = {"messages": [{"role": "user", "content": "你是谁"}], "temperature": 0,
            "max_tokens": 120}


def run(*args, env=None):
    return subprocess.run([BATON, *args], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})})


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def alive(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def stub(folder, name, script):
    """A program of that name, to be found before the real one."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


class Served:
    """A running ./baton serve."""

    def __init__(self, folder, *args, port=None):
        self.run_dir = pathlib.Path(folder)
        self.port = port or free_port()
        self.log = open(self.run_dir / "serve.log", "wb")
        self.process = subprocess.Popen(
            [BATON, "serve", "--port", str(self.port), "--run_dir", folder, *args],
            stdout=self.log, stderr=self.log, start_new_session=True)

    def text(self):
        return (self.run_dir / "serve.log").read_text(errors="replace")

    def wait_ready(self, seconds=120):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended: {self.text()}")
            return "Baton is ready" in self.text()
        wait_until(ready, seconds, "ready")

    def pid(self, name, other_than=None):
        def read():
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = int((self.run_dir / f"{name}.pid").read_text())
                return pid if pid != other_than and alive(pid) else None
            return None
        return wait_until(read, 20, f"{name} runs")

    def open_stream(self):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps({**QUESTION, "stream": True}).encode(),
            {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=60)

    def end(self):
        if self.process.poll() is None:  # it takes its pools with it, which a kill would leave behind
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.log.close()


def events(stream):
    """The texts of an SSE stream as they come; raises if it breaks off before [DONE]."""
    for line in stream:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise AssertionError(event)
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                yield text
    raise AssertionError("the stream ended without [DONE]")


class ServeTest(unittest.TestCase):
    def serve(self, *args):
        served = Served(folders.temporary(self, "baton-launcher-"), *args)
        self.addCleanup(served.end)
        served.wait_ready()
        return served

    def test_the_newcomers_story(self):
        began = time.monotonic()
        s = self.serve()
        self.assertLess(time.monotonic() - began, 30, "a second start takes seconds")

        self.assertIn("demo/model by prefill0 (prefill on cpu), decode0 (decode on cpu)", s.text())
        for what, chosen, option in (
                ("context", r"32768 tokens", "--max_context"),
                ("tokenizer", r"tokenizer.model", "--frontend.tokenizer"),
                ("chat template", r"chat_format.json", "--frontend.chat_template"),
                ("decode0", r"decode on cpu, \d+ threads?", "--device, --worker.threads"),
                ("decode0 weights", r"bf16, 0\.\d+ GiB, \d+ MiB shared with prefill0", "--worker.dtype"),
                ("decode0 KV pool", r"f32, 0\.\d+ GiB: \d+ tokens; [\d.]+ GiB were free",
                 "--worker.pool_mib")):
            self.assertRegex(s.text(), rf"(?m)^  {what} +{chosen} +{option}")
        command = re.search(r"^  (curl (?:.*\\\n)*.*)$", s.text(), re.MULTILINE).group(1)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        self.assertIn("data: [DONE]", done.stdout, done)

        self.assertIn(f"ok       port {s.port}: the Baton that runs has it (process {s.pid('frontend0')})",
                      run("doctor", "--port", str(s.port)).stdout)
        second = run("serve", "--port", str(s.port))
        self.assertEqual(1, second.returncode)
        self.assertIn(f"taken by another Baton, whose front end is process {s.pid('frontend0')}", second.stderr)
        second = run("serve", "--port", str(free_port()), "--run_dir", str(s.run_dir))
        self.assertEqual(1, second.returncode)
        self.assertIn(f"another Baton (process {s.process.pid}) runs in {s.run_dir}", second.stderr)

        whole = "".join(events(s.open_stream()))
        self.assertGreater(len(whole), 5)
        for name in ("decode0", "prefill0", "scheduler"):
            with self.subTest(killed=name):
                stream = events(s.open_stream())
                text = next(stream)
                pid = s.pid(name)
                os.kill(pid, signal.SIGKILL)
                self.assertEqual(whole, text + "".join(stream), s.text())
                s.pid(name, other_than=pid)

        pids = [s.pid(name) for name in ("frontend0", "scheduler", "prefill0", "decode0")]
        s.process.send_signal(signal.SIGINT)
        self.assertEqual(0, s.process.wait(15), s.text())
        self.assertEqual([], [pid for pid in pids if alive(pid)])

    def test_after_the_supervisors_death_the_next_serve_takes_over(self):
        first = self.serve()
        names = ("memory", "scheduler", "prefill0", "decode0", "frontend0")
        pids = {name: first.pid(name) for name in names}
        whole = "".join(events(first.open_stream()))
        stream = events(first.open_stream())
        text = next(stream)
        first.process.kill()
        first.process.wait()
        second = Served(str(first.run_dir), port=first.port)
        self.addCleanup(second.end)
        self.assertEqual(whole, text + "".join(stream))
        second.wait_ready()
        self.assertIn("processes whose supervisor was killed run in", second.text())
        self.assertEqual(pids, {name: second.pid(name) for name in names}, second.text())
        self.assertEqual(whole, "".join(events(second.open_stream())))
        second.process.send_signal(signal.SIGINT)
        self.assertEqual(0, second.process.wait(15), second.text())
        self.assertEqual([], [pid for pid in pids.values() if alive(pid)])

    def test_an_upgrade_replaces_every_process(self):
        s = self.serve()
        names = ("memory", "scheduler", "prefill0", "decode0", "frontend0")
        pids = {name: s.pid(name) for name in names}
        whole = "".join(events(s.open_stream()))
        done = run("upgrade", "--run_dir", str(s.run_dir))
        self.assertEqual((0, ""), (done.returncode, done.stderr), done)
        self.assertIn("frontend0 is replaced", done.stdout)
        for name in names:
            s.pid(name, other_than=pids[name])
        self.assertIsNone(s.process.poll())
        self.assertIn("replaced by", s.text())
        self.assertEqual(whole, "".join(events(s.open_stream())))

    def test_an_upgrade_of_nothing_is_refused(self):
        nothing = folders.temporary(self, "baton-launcher-")
        done = run("upgrade", "--run_dir", nothing)
        self.assertEqual(1, done.returncode)
        self.assertIn(f"no supervisor runs in {nothing}", done.stderr)

    def test_a_frozen_worker_is_replaced(self):
        s = self.serve("--frozen-after", "2")
        whole = "".join(events(s.open_stream()))
        stream = events(s.open_stream())
        text = next(stream)
        pid = s.pid("decode0")
        os.kill(pid, signal.SIGSTOP)
        self.assertEqual(whole, text + "".join(stream), s.text())
        pids = [pid, s.pid("decode0", other_than=pid), s.pid("prefill0")]
        self.assertIn("decode0 is frozen", s.text())
        s.process.send_signal(signal.SIGINT)  # while decode0 still starts
        self.assertEqual(0, s.process.wait(20), s.text())
        self.assertEqual([], [pool for pid in pids for pool in glob.glob(f"/dev/shm/baton-*-{pid}-*")])

    def test_a_taken_port_is_named(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            done = run("serve", "--port", str(port))
        self.assertEqual(1, done.returncode)
        self.assertIn(f"port {port} is taken by another program", done.stderr)

    def test_a_port_of_another_baton_names_its_process_once(self):
        with Cluster(fake=True) as cluster:
            port = next(iter(cluster.frontends.values()))
            done = run("serve", "--port", str(port))
            said = re.search(rf"port {port} is taken by another Baton, whose front end is process (\d+); choose", done.stderr)
            self.assertIsNotNone(said, done.stderr)
            self.assertTrue(pathlib.Path(f"/proc/{said[1]}").exists(), done.stderr)
        self.assertEqual(1, done.returncode)

    def test_a_wrong_option_is_named(self):
        done = run("serve", "--no_such_key", "1")
        self.assertEqual(1, done.returncode)
        self.assertIn("no_such_key", done.stderr)

    def test_a_missing_configuration_is_named(self):
        done = run("serve", "--config", "/nonexistent.yaml")
        self.assertEqual(1, done.returncode)
        self.assertIn("/nonexistent.yaml", done.stderr)

    def test_a_second_one_takes_a_run_directory_of_its_own(self):
        usual = pathlib.Path(f"/tmp/baton-{os.getuid()}")
        first = subprocess.Popen([BUILD / "bin" / "baton-supervisor", "--run-dir", usual, "--process",
                                  "launcher-test=sleep 1000"], stdout=subprocess.DEVNULL)
        self.addCleanup(first.wait)
        self.addCleanup(first.terminate)
        wait_until((usual / "launcher-test.pid").exists, 20, "the first one runs")
        port = free_port()
        own = pathlib.Path(f"{usual}-{port}")
        self.addCleanup(folders.remove, own)
        done = run("serve", "--port", str(port), "--worker.memory_mib", "70")  # too little: it ends
        self.assertRegex(done.stdout, rf"another Baton \(process \d+\) runs here: this one takes --run_dir {own}\n")
        self.assertEqual(2, done.returncode, done.stdout)
        self.assertIn("not enough memory: ", done.stdout.splitlines()[-1])
        self.assertTrue((own / "logs" / "decode0.log").exists())


class RefusedTest(unittest.TestCase):
    """What is known to be wrong before anything is installed or built."""

    def setUp(self):
        self.folder = pathlib.Path(folders.temporary(self, "baton-launcher-"))

    def refused(self, *args):
        # Nothing is set up: a machine of another kind ends that.
        stub(self.folder / "bin", "uname", "echo riscv64")
        done = run("serve", *args, env={"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"})
        self.assertEqual(1, done.returncode, done)
        return done.stderr

    def test_help_needs_no_build(self):
        for args in (["--help"], ["--port", "1", "-h"]):
            self.assertIn("--model DIR", run("serve", *args).stdout)

    def test_models_that_are_not_here(self):
        gguf = self.folder / "a.gguf"
        gguf.write_bytes(b"GGUF")
        text = self.folder / "b.gguf"
        text.write_text("none")
        self.assertIn("this is riscv64", self.refused("--model", str(gguf)))
        nothing = "nothing is downloaded or converted"
        for model, words in (("org/name-7b", ["org/name-7b is not a folder here", "a name on a model hub", nothing]),
                             ("/none/at/all", ["there is no folder /none/at/all", nothing]),
                             ("hf://org/name", ["hf://org/name is an address", nothing]),
                             ("none.gguf", ["there is no folder none.gguf", nothing]),
                             (str(text), ["b.gguf is named like a GGUF file, but does not begin like one"]),
                             (str(ROOT / "README.md"), ["README.md is a file"]),
                             (str(self.folder), ["has GGUF files: name one of them", "a.gguf"])):
            said = self.refused("--model", model)
            for word in words:
                self.assertIn(word, said)

    def test_a_folder_lacks_something(self):
        model = self.folder / "model"
        model.mkdir()
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        for file, words in (("config.json", "has no config.json"), ("tokenizer.json", "has no tokenizer.json and no"),
                            ("pytorch_model.bin", "has no model.safetensors"),
                            ("model.safetensors", "weights in PyTorch's format alone")):
            self.assertIn(words, self.refused(f"--model={model}"))
            (model / file).touch()
        self.assertIn("this is riscv64", self.refused("--model", str(model)))
        for file in ("model.safetensors", "tokenizer.json"):
            (model / file).write_text(pointer)
            self.assertIn(f"{model / file} is a git-lfs pointer, not the file itself; fetch it:  git lfs pull",
                          self.refused("--model", str(model)))
            (model / file).write_text("")
        gguf = self.folder / "pointer.gguf"
        gguf.write_text(pointer)
        self.assertIn("is a git-lfs pointer", self.refused("--model", str(gguf)))

    def test_the_configurations_model_is_looked_at_too(self):
        config = self.folder / "c.yaml"
        config.write_text("model: 'none'  # relative to this file\n")
        self.assertIn(f"there is no folder {self.folder}/none", self.refused("--config", str(config)))

    def test_other_servers_options(self):
        for args, words in ((["--max-model-len", "4096"], "--max-model-len is not an option of Baton; here it is  --max_context"),
                            (["--max-model-len=4096"], "here it is  --max_context"),
                            (["--gpu-memory-utilization", "0.9"], "here it is  --worker.memory_fraction"),
                            (["--served-model-name", "x"], "here it is  --model_name"),
                            (["--max-num-seqs", "8"], "here it is  --scheduler.max_running"),
                            (["--dtype", "bfloat16"], "here it is  --worker.dtype"),
                            (["--tensor-parallel-size", "2"], "here it is  --worker.ranks N"),
                            (["--pipeline-parallel-size", "2"], "one model is cut by --worker.ranks alone"),
                            (["-tp", "2"], "here it is  --worker.ranks N"),
                            (["--trust-remote-code"], "no code of a model folder is run"),
                            (["--port", "1", str(ROOT / "demo" / "model")], "is named with  --model "),
                            (["--log_level", "debug", "demo/model"], "'demo/model' stands alone")):
            self.assertIn(words, self.refused(*args))
        for args in (["--log_level", "debug", "--worker.check_pulls", "--max_context=9"], ["--log-level", "debug", "--run-dir=/tmp/x"],
                     ["--listen", "8000=openai", "--dialects", "lab", "--allowed-origins", "*"]):
            self.assertIn("this is riscv64", self.refused(*args))

    def test_a_run_directory_of_another_user(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        link = self.folder / "link"
        link.symlink_to(elsewhere)
        done = run("serve", "--run_dir", str(link), "--port", str(free_port()))
        self.assertEqual(1, done.returncode, done)
        self.assertIn(f"run_dir: {link} is not a directory", done.stderr)
        done = run("upgrade", "--run-dir", str(link))
        self.assertEqual(1, done.returncode, done)
        self.assertIn(f"run_dir: {link} is not a directory", done.stderr)
        self.assertEqual([], list(elsewhere.iterdir()))

    def test_a_dry_run_starts_nothing(self):
        run_dir = self.folder / "run"
        done = run("serve", "--dry-run", "--run-dir", str(run_dir), "--listen", "8123=openai")
        self.assertEqual(0, done.returncode, done)
        self.assertIn(f"http://127.0.0.1:8123, run directory {run_dir}", done.stdout)
        self.assertFalse(run_dir.exists())

    def test_the_commit_without_git(self):
        """In a container's build there is no git and only a part of .git."""
        commit = "0123456789abcdef0123456789abcdef01234567"
        git = self.folder / ".git"
        (git / "refs" / "heads").mkdir(parents=True)
        script = self.folder / "show.cmake"
        script.write_text(f'include({ROOT}/cmake/Commit.cmake)\nbaton_commit("{self.folder}" found)\n'
                          'file(WRITE "${OUT}" "${found}")\n')

        def found():
            out = self.folder / "out"
            subprocess.run(["cmake", f"-DOUT={out}", "-P", script], check=True, timeout=60)
            return out.read_text()

        self.assertEqual("unknown", found())
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        self.assertEqual("unknown", found())
        (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{commit} refs/heads/main\n")
        self.assertEqual(commit[:12], found())
        (git / "refs" / "heads" / "main").write_text("f" * 40 + "\n")
        self.assertEqual("f" * 12, found())
        (git / "HEAD").write_text(commit + "\n")
        self.assertEqual(commit[:12], found())

    def test_a_checkout_of_somebody_else(self):
        checkout = self.folder / "checkout"
        (checkout / "configs").mkdir(parents=True)
        for file in ("baton", "configs/1p1d.yaml"):
            (checkout / file).write_bytes((ROOT / file).read_bytes())
        stub(self.folder / "bin", "git", "echo 'fatal: detected dubious ownership in repository' >&2; exit 128")
        stub(self.folder / "bin", "uname", "echo riscv64")
        (checkout / ".git").mkdir()
        done = subprocess.run(["sh", checkout / "baton", "serve", "--model", ROOT / "demo" / "model"],
                              capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"})
        self.assertIn("git config --global --add safe.directory", done.stdout)
        if os.getuid() == 0:
            return  # root may write everywhere
        (checkout / "build").mkdir(mode=0o500)
        done = subprocess.run(["sh", checkout / "baton", "serve", "--model", ROOT / "demo" / "model"],
                              capture_output=True, text=True, timeout=60)
        self.assertIn("may not write there", done.stderr)


class DeviceTest(unittest.TestCase):
    """CPU or GPU, on a machine whose GPU and nvcc are stubs. A third stub ends the start after the choice."""

    def choice(self, gpus, release, *files, visible="", **config):
        folder = pathlib.Path(folders.temporary(self, "baton-launcher-"))
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        for file in ("tokenizer.json", "model.safetensors", *files):
            (model / file).touch()
        stub(folder / "bin", "uname", "echo riscv64")
        stub(folder / "bin", "nvidia-smi", f"printf '{gpus}'")
        stub(folder / "bin", "nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.1'")
        done = run("serve", "--model", str(model), env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
                                                         "CUDA_VISIBLE_DEVICES": visible})
        self.assertIn("this is riscv64", done.stderr)
        return done.stdout

    def test_every_kind_of_checkpoint_goes_to_the_gpu(self):
        for files, config in (([], {}), (["quantize_config.json"], {}),
                              ([], {"quantization_config": {"quant_method": "fp8"}}),
                              ([], {"quantization_config": {"quant_method": "gptq"}}),
                              ([], {"quantization_config": {"quant_method": "awq"}}),
                              ([], {"num_experts": 128}), ([], {"num_local_experts": 8})):
            self.assertIn("a GPU and nvcc are here: --device cuda",
                          self.choice("GPU 0: some\\n", "13.0", *files, **config), (files, config))

    def test_one_gpu_gets_one_worker_and_two_get_a_pair(self):
        one, two = "GPU 0: some\\n", "GPU 0: some\\nGPU 1: some\\n"
        for gpus, visible, config in ((one, "", "1mixed-cuda.yaml"), (two, "", "1p1d-cuda.yaml"),
                                      (two, "1", "1mixed-cuda.yaml"), (two, "0,1", "1p1d-cuda.yaml")):
            self.assertIn(f"configuration {config} (--config", self.choice(gpus, "13.0", visible=visible), (gpus, visible))
        self.assertNotIn("configuration", self.choice("No devices", "13.0"))

    def test_without_a_gpu_it_is_the_cpu_and_without_a_new_nvcc_it_says_so(self):
        self.assertEqual("", self.choice("No devices", "13.0"))
        self.assertIn("a GPU is here, but no nvcc 13 or newer", self.choice("GPU 0: some\\n", "12.8"))


class TestTest(unittest.TestCase):
    """./baton test in a small checkout of its own, whose cmake, ninja, nvcc and ctest are stubs."""

    def setUp(self):
        self.root = pathlib.Path(folders.temporary(self, "baton-launcher-"))
        for file in ("baton", "tests/run_tests.py"):
            (self.root / file).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / file, self.root / file)
        (self.root / "cmake").mkdir()
        for name in ("debian-packages", "pypi-requirements", "pypi-requirements-cuda", "pypi-requirements-python",
                     "pypi-requirements-gateway", "pypi-requirements-sdist", "pypi-requirements-xgrammar"):
            (self.root / "cmake" / f"{name}.txt").touch()
        nothing = hashlib.sha256(b"").hexdigest()
        for name, stamp in (("torch", f"layout 2, {nothing}"), ("python", nothing), ("xgrammar", f"layout 1, {nothing}"),
                            ("gateway", nothing), ("flashinfer", nothing)):
            (self.root / ".deps" / name).mkdir(parents=True)
            (self.root / ".deps" / name / "stamp").write_text(stamp + "\n")
        bin_ = self.root / "bin"
        stub(bin_, "cmake", f'for last; do case $last in cpu|asan|tsan|cuda-check) mkdir -p {self.root}/build/$last; '
                            f'touch {self.root}/build/$last/build.ninja;; esac; done')
        stub(bin_, "ninja", 'case " $* " in *" -n "*) echo "no work to do" ;; esac; exit ${NINJA:-0}')
        stub(bin_, "nvcc", "exit 0")
        stub(bin_, "ctest", f"""echo "$*" >>{self.root}/calls
case " $* " in
  *" -R "*) bad=${{SECOND:-0}} all=1 ;;
  *asan*) bad=0 all=2 ;;
  *) bad=${{FIRST:-0}} all=3 ;;
esac
echo "90% tests passed, $bad tests failed out of $all"
if [ $bad = 1 ]; then printf 'The following tests FAILED:\n\t  7 - some.test (Failed)\n'; fi""")

    def baton(self, *args, **env):
        done = subprocess.run([self.root / "baton", "test", *args], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
                                   "BATON_DEPS": str(self.root / ".deps"), **env})
        return done.returncode, done.stdout.splitlines()

    def retries(self):
        return [line for line in (self.root / "calls").read_text().splitlines() if "-R" in line]

    def test_all_trees_and_phases(self):
        code, said = self.baton()
        self.assertEqual((0, "9 passed, 0 failed"), (code, said[-1]), said)  # 3 + 2 + 3 tests, and CUDA compiles
        rows = [line.split("|")[1].strip() for line in said if line.startswith("  |") and "---" not in line]
        self.assertEqual(["phase", "setup", "compile cpu", "tests cpu", "compile asan", "tests asan", "compile tsan",
                          "tests tsan", "compile cuda-check", "all"], rows)
        self.assertEqual([], self.retries())

    def test_a_failure_is_retried(self):
        code, said = self.baton("--fast", FIRST="1")
        self.assertEqual((0, "3 passed, 0 failed"), (code, said[-1]), said)
        self.assertEqual("flaky: some.test", said[-2])
        self.assertEqual(1, len(self.retries()))
        self.assertTrue(self.retries()[0].endswith("-R ^some\\.test$"), self.retries())

    def test_a_second_failure_is_one(self):
        code, said = self.baton("--fast", FIRST="1", SECOND="1")
        self.assertEqual((1, "2 passed, 1 failed"), (code, said[-1]), said)

    def test_the_nightly_run_retries_nothing(self):
        stub(self.root / "bin", "clang-tidy", "exit 0")
        code, said = self.baton("--fast", "--all", FIRST="1")
        self.assertEqual(1, code, said)
        self.assertEqual([], self.retries())

    def test_cuda_that_does_not_compile_has_failed(self):
        stub(self.root / "bin", "ninja", 'case " $* " in *" -n "*) echo "no work to do" ;; *baton-cuda*) exit 1 ;; esac')
        code, said = self.baton()
        self.assertEqual((1, "8 passed, 1 failed"), (code, said[-1]), said)
        self.assertIn("failed: compile cuda-check", said)


class ChangedFilesTest(unittest.TestCase):
    """format and tidy look at what differs from a commit, in a small repository of their own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("baton", ".clang-format"):
            shutil.copy(pathlib.Path(BATON).parent / name, self.root / name)
        (self.root / "ipc").mkdir()
        for name, text in (("a.cpp", "int a;\n"), ("b.cpp", '#include "ipc/b.h"\n'), ("b.h", "int b();\n"),
                           ("c.h", "int c();\n"), ("d.cpp", '#include "ipc/c.h"\nint d;\n')):
            (self.root / "ipc" / name).write_text(text)
        self.git("init", "-q", "-b", "main")
        self.commit()
        tree = self.root / "build" / "cpu"
        tree.mkdir(parents=True)
        (tree / "compile_commands.json").write_text("".join(
            f'"file": "{self.root}/ipc/{name}.cpp"\n' for name in "abd"))
        stub = self.root / "stubs" / "clang-tidy"
        stub.parent.mkdir()
        stub.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >>{self.root}/seen\n'
                        f'! grep -q wrong "$last"\n')
        stub.chmod(0o755)

    def git(self, *args):
        subprocess.run(["git", "-C", self.root, "-c", "user.name=x", "-c", "user.email=x@example.com", *args],
                       check=True, capture_output=True)

    def commit(self):
        self.git("add", "ipc")
        self.git("commit", "-q", "-m", "x")

    def change(self, name, text):
        (self.root / "ipc" / name).write_text(text)

    def baton(self, *args):
        (self.root / "seen").write_text("")
        path = f"{self.root}/stubs:{os.environ['PATH']}"
        return subprocess.run([self.root / "baton", *args], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PATH": path})

    def seen(self):
        return sorted((self.root / "seen").read_text().split())

    def test_tidy_takes_a_header_by_a_source_that_includes_it(self):
        self.assertIn("No C++ file differs", self.baton("tidy", "HEAD").stdout)
        self.change("b.h", "int b(int);\n")
        self.change("c.h", "int c(int);\n")
        done = self.baton("tidy", "HEAD")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(["ipc/b.cpp", "ipc/d.cpp"], self.seen())

    def test_tidy_takes_the_last_commit_of_main_and_fails_as_clang_tidy_does(self):
        self.change("a.cpp", "int wrong;\n")
        self.commit()
        self.assertNotEqual(0, self.baton("tidy").returncode)
        self.assertEqual(["ipc/a.cpp"], self.seen())

    def test_a_branch_is_told_from_where_it_left_main(self):
        self.git("checkout", "-q", "-b", "mine")
        for name in ("a.cpp", "d.cpp"):
            self.change(name, "int other;\n")
            self.commit()
        self.assertEqual(0, self.baton("tidy").returncode)
        self.assertEqual(["ipc/a.cpp", "ipc/d.cpp"], self.seen())
        self.assertIn("there is no commit 'nowhere'", self.baton("tidy", "nowhere").stderr)

    @unittest.skipUnless(shutil.which("git-clang-format"), "no clang-format here")
    def test_format_checks_and_mends_changed_lines_alone(self):
        self.change("d.cpp", '#include "ipc/c.h"\nint d;\n  int  far ;\n')
        self.commit()
        self.assertIn("Nothing to format", self.baton("format", "--check", "HEAD").stdout)
        self.change("a.cpp", "int   a ;\n")
        done = self.baton("format", "--check", "HEAD")
        self.assertEqual(1, done.returncode)
        self.assertIn("+int a;", done.stdout)
        self.assertEqual(0, self.baton("format", "HEAD").returncode)
        self.assertEqual("int a;\n", (self.root / "ipc/a.cpp").read_text())
        self.assertIn("  int  far ;", (self.root / "ipc/d.cpp").read_text())
        self.assertEqual(1, self.baton("format", "--check", "HEAD~1").returncode)


class CommandsTest(unittest.TestCase):
    def test_help_and_version(self):
        self.assertIn("./baton COMMAND", run("help").stdout)
        self.assertRegex(run("--version").stdout, r"^baton \d+\.\d+\.\d+$")

    def test_an_unknown_command_is_refused(self):
        done = run("sevre")
        self.assertEqual(1, done.returncode)
        self.assertIn("unknown command 'sevre'", done.stderr)

    def test_doctor_finds_a_taken_port(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            done = run("doctor", str(port))
        self.assertEqual(1, done.returncode)
        self.assertIn(f"missing  port {port}: another program listens on it", done.stdout)
        self.assertNotIn(f"missing  port {port}", run("doctor", str(port)).stdout)

    def test_doctor_names_missing_and_old_packages(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder) / "dpkg-query"
            fake.write_text('#!/bin/sh\ncase $4 in\n'
                            'mold) exit 1 ;;\n'
                            'cmake) printf "installed 3.18.4-2" ;;\n'
                            'libspdlog-dev) printf "installed 1:1.10.0+ds-0.4" ;;\n'
                            '*) printf "installed 9:99999999" ;;\nesac\n')
            fake.chmod(0o755)
            done = run("doctor", env={"PATH": f"{folder}:{os.environ['PATH']}"})
        self.assertEqual(1, done.returncode)
        self.assertIn("missing  mold, at least 1.10: not installed", done.stdout)
        self.assertIn("apt-get install --no-install-recommends mold", done.stdout)
        self.assertIn("missing  cmake, at least 3.25: version 3.18.4-2 is too old", done.stdout)
        self.assertIn("ok       libspdlog-dev, at least 1.10.0", done.stdout)

    def doctor_with_gpus(self, topology, reads, free="", *words):
        """What doctor says where nvidia-smi tells that."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("topology", topology), ("reads", reads), ("free", free)):
                (pathlib.Path(folder) / name).write_text(text)
            stub(pathlib.Path(folder), "nvidia-smi", f'cd {folder}\ncase "$*" in\n"topo -m") cat topology ;;\n'
                 '"topo -p2p r") cat reads ;;\n*memory.free*) cat free ;;\nesac')
            return run("doctor", *words, env={"PATH": f"{folder}:{os.environ['PATH']}"}).stdout

    def test_doctor_tells_which_gpus_reach_each_other(self):
        # As driver 580 prints it on a host with two H100.
        topology = ("\t\033[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\nGPU0\t X \tNV18\t0-31\t0\t\tN/A\n"
                    "GPU1\tNV18\t X \t0-31\t0\t\tN/A\n\nLegend:\n\n  X    = Self\n  NV#  = bonded NVLinks\n")
        reads = (" \t\033[4mGPU0\tGPU1\t\033[0m\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n")
        self.assertIn("ok       GPUs 0-1: NVLink (NV18), each reads the memory of the other\n",
                      self.doctor_with_gpus(topology, reads))
        self.assertIn("note     GPUs 0-1: NVLink (NV18), whether they read each other is not told\n",
                      self.doctor_with_gpus(topology, ""))
        three = ("\tGPU0\tGPU1\tGPU2\tNIC0\nGPU0\t X \tNV4\tSYS\tPXB\nGPU1\tNV4\t X \tSYS\tPXB\nGPU2\tSYS\tSYS\t X \tSYS\n"
                 "NIC0\tPXB\tPXB\tSYS\t X \n")
        can = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tOK\tCNS\nGPU1\tOK\tX\tCNS\nGPU2\tCNS\tCNS\tX\n"
        said = self.doctor_with_gpus(three, can)
        self.assertIn("ok       GPUs 0-1: NVLink (NV4), each reads the memory of the other\n", said)
        self.assertIn("note     GPUs 0-2, 1-2: PCIe (SYS), neither reads the memory of the other (CNS): "
                      "no KV blocks go from one to the other\n", said)
        alike = "".join(f"GPU{i}\t" + "\t".join("X" if i == j else "NV18" for j in range(4)) + "\n" for i in range(4))
        self.assertIn("ok       GPUs 0 to 3, all pairs: NVLink (NV18), each reads the memory of the other\n",
                      self.doctor_with_gpus(alike, alike.replace("NV18", "OK")))
        self.assertNotIn("GPUs", self.doctor_with_gpus("GPU0\t X \t0-31\n", "GPU0\tX\n"))

    def test_doctor_tells_how_cpus_reach_each_other(self):
        nodes = [path for path in pathlib.Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")
                 if path.read_text().strip()]
        said = run("doctor").stdout
        if len(nodes) > 1:
            self.assertIn(f"are {len(nodes)} NUMA nodes: ranks share memory, across them more slowly", said)
        else:
            self.assertIn("ok       CPUs: one NUMA node; ranks share memory\n", said)

    def test_doctor_tells_whether_a_model_fits(self):
        demo = str(ROOT / "demo" / "model")
        said = self.doctor_with_gpus("", "", "81079\n81079\n", "--model", demo, "--max_context", "4096")
        self.assertRegex(said, r"(?m)^ok       model on CPUs, 1 rank: weights 0\.\d\d GiB \+ KV of 4096 tokens 0\.\d\d GiB \+ "
                               r"0\.06 GiB of its own; \d+\.\d\d GiB may be taken$")
        self.assertRegex(said, r"(?m)^ok       model on GPUs, 2 ranks, each: weights .* 71\.26 GiB may be taken$")
        self.assertIn(f"ok       room for {demo}\n", said)
        done = run("doctor", "--model", "org/model")
        self.assertEqual(1, done.returncode)
        self.assertIn("looks like a name on a model hub", done.stderr)
        self.assertIn("'--modle' is no option of doctor", run("doctor", "--modle", demo).stderr)

    def test_what_is_announced_of_several_models(self):
        """By /health: who is not served and why, and whom the example asks."""
        sys.path.insert(0, str(ROOT / "packaging"))
        import front
        functions = "".join(front.function(BATON.read_text(), name) for name in ("say", "left_out", "one_served"))

        def announced(reason, *models):
            told = [{"status": status, "reason": why, "model": name, "version": "v"} for name, status, why in models]
            health = json.dumps({"status": "ok", "reason": reason, "version": "v", "models": told}, separators=(",", ":"))
            return subprocess.run(["sh", "-ec", f'{functions}left_out "$1" | sed "s/^/not /"; one_served "$1"', "sh", health + "\n 200"],
                                  check=True, capture_output=True, text=True).stdout.splitlines()

        small = ("small", "ok", "1 worker is ready")
        self.assertEqual(['not late: no \\"x\\" here', "small"],
                         announced('late: no "x" here', ("late", "cannot_load", 'no "x" here'), small))
        self.assertEqual(["small"], announced("all 1 models can serve", small))
        alone = '{"status":"ok","reason":"1 worker is ready","model":"m","version":"v"}'
        self.assertEqual("", subprocess.run(["sh", "-c", f'{functions}left_out "$1"', "sh", alone], capture_output=True, text=True).stdout)

    def test_it_is_plain_sh(self):
        for shell in ("sh", "bash"):
            self.assertEqual(0, subprocess.run([shell, "-n", BATON]).returncode)


if __name__ == "__main__":
    unittest.main(verbosity=2)
