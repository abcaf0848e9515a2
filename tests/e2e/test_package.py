"""What `./baton package` makes. Tree: the files, what they load, pages, completions, the unit. Moved: the portable archive
from a folder of its own, upgraded under load. Bare: the package in a system that debootstrap made, as root. Cuda: the package
for GPUs, with a stand-in for the worker that loads the CUDA toolkit's library."""

import contextlib
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import folders
from test_launcher import BATON, BUILD, ROOT, free_port, wait_until

SKIPPED = 77
TORCH = {"libc10.so", "libcudart.so.13", "libcupti.so.13", "libgomp.so.1", "libtorch_cpu.so"}
PROGRAMS = {"ctl", "fit", "frontend", "grammar", "memory", "plan", "scheduler", "supervisor", "worker"}
C_LIBRARY = re.compile(r"(libc|libm|libpthread|librt|libdl|libutil|libresolv)\.so\.\d+$|ld-linux|linux-vdso")
PROMPTS = ["The moon", "Once upon a time", "In the beginning", "A ship"]


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=300, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def package(*arguments):
    return run(BATON, "package", *arguments)


def elves(tree):
    found = []
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    found.append(path)
    return found


def dynamic(elf):
    """The libraries that it names, and where it looks for them."""
    text = run("readelf", "-d", elf)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text)), re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text)


class Staged(unittest.TestCase):
    """The trees, made once."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-package-"))
        cls.addClassCleanup(folders.remove, cls.folder)
        package("--stage", "--version", "9.8.7", "--output", cls.folder)
        cls.tree = cls.folder / "stage" / "baton"
        cls.moved = cls.folder / "stage" / "baton-9.8.7-x86_64-linux"
        cls.usr = cls.tree / "usr"


class Tree(Staged):
    def test_the_files_are_complete_and_no_more(self):
        files = {str(path.relative_to(self.tree)) for path in self.tree.rglob("*")
                 if not path.is_dir() and "DEBIAN" not in path.parts}
        wanted = {f"usr/lib/baton/bin/baton-{name}" for name in PROGRAMS} | {f"usr/lib/baton/lib/{name}" for name in TORCH}
        self.assertEqual(wanted, {file for file in files if re.match("usr/lib/baton/(bin|lib)/", file)})
        for file in ("usr/bin/baton", "usr/bin/baton-ctl", "etc/baton/1p1d.yaml", "etc/default/baton",
                     "usr/lib/systemd/system/baton@.service", "usr/lib/baton/python/jinja2/__init__.py",
                     "usr/share/baton/demo/model/model.safetensors", "usr/share/man/man1/baton.1.gz",
                     "usr/share/man/man1/baton-ctl.1.gz", "usr/share/man/man5/baton.yaml.5.gz",
                     "usr/share/bash-completion/completions/baton", "usr/share/zsh/vendor-completions/_baton",
                     "usr/share/fish/vendor_completions.d/baton.fish", "usr/share/doc/baton/copyright"):
            self.assertIn(file, files)
        settings = (self.tree / "DEBIAN" / "conffiles").read_text().split()
        self.assertEqual(sorted("/" + file for file in files if file.startswith("etc/")), sorted(settings))
        self.assertIn("model: /usr/share/baton/demo/model\n", (self.tree / "etc/baton/1p1d.yaml").read_text())
        self.assertIn("model: ../../share/baton/demo/model\n", (self.moved / "etc/baton/1p1d.yaml").read_text())

    def test_every_library_is_there_or_in_a_package_that_is_named(self):
        control = (self.tree / "DEBIAN" / "control").read_text()
        needs = {word.split()[0] for word in re.search(r"Depends: (.*)", control).group(1).split(", ")}
        for line in run("dpkg-query", "-W", "-f", "${Package}|${Provides}\n").splitlines():  # names that stand for others
            package, provides = line.split("|", 1)
            if needs & {word.split()[0] for word in provides.split(", ") if word}:
                needs.add(package)
        listed = {path.rsplit("/", 1)[-1] for name in needs
                  for path in subprocess.run(["dpkg", "-L", name], text=True, capture_output=True).stdout.split()}
        for elf in elves(self.tree):
            names, places = dynamic(elf)
            lost = {name for name in names - TORCH - listed if not C_LIBRARY.match(name)}
            self.assertEqual(set(), lost, elf.name)
            if elf.parent.name == "bin":
                self.assertEqual(["$ORIGIN/../lib"], places, elf.name)

    def test_the_archive_brings_all_but_the_c_library(self):
        there = {path.name for path in (self.moved / "lib/baton/lib").iterdir()}
        for elf in elves(self.moved):
            names, places = dynamic(elf)
            self.assertEqual(set(), {name for name in names - there if not C_LIBRARY.match(name)}, elf.name)
            self.assertFalse([place for place in places if str(ROOT) in place or ".deps" in place], elf.name)
        self.assertFalse([name for name in there if C_LIBRARY.match(name)])
        self.assertEqual("baton 9.8.7\n", run(self.moved / "baton", "--version"))

    def test_the_pages_have_every_option_and_render(self):
        text = run(BUILD / "bin" / "baton-scheduler", "--help")
        keys = set(re.findall(r"(?m)^  --(?:scheduler|frontend|worker)\.(\w+)", text))
        self.assertGreater(len(keys), 80)
        pages = {path.name: gzip.decompress(path.read_bytes()).decode() for path in (self.usr / "share/man").rglob("*.gz")}
        self.assertEqual({"baton.1.gz", "baton-ctl.1.gz", "baton.yaml.5.gz"}, set(pages))
        self.assertEqual(set(), {key for key in keys if f"\\fB{key}\\fR" not in pages["baton.yaml.5.gz"]})
        self.assertIn("restart NAME|all", pages["baton-ctl.1.gz"])
        self.assertIn("\\fBshow info|workers", pages["baton-ctl.1.gz"])
        for name, text in pages.items():
            page = self.folder / name.removesuffix(".gz")
            page.write_text(text)
            if shutil.which("mandoc"):
                done = subprocess.run(["mandoc", "-Tlint", "-Werror", page], text=True, capture_output=True)
                self.assertEqual(0, done.returncode, done.stdout)
            if shutil.which("man"):
                done = subprocess.run(["man", "--warnings", "-l", page], text=True, capture_output=True,
                                      env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
                self.assertEqual((0, ""), (done.returncode, done.stderr))
                self.assertIn("SEE ALSO", done.stdout)

    def completed(self, *words):
        """What bash would offer for the last word."""
        script = (f"source {self.usr}/share/bash-completion/completions/baton\n"
                  f"COMP_WORDS=({' '.join(words)} '') COMP_CWORD={len(words)}\n"
                  f"{'_baton' if words[0] == 'baton' else '_baton_ctl_alone'}\n"
                  'printf "%s\\n" "${COMPREPLY[@]}"\n')
        return run("bash", "-c", script).split()

    def test_the_completions_parse_and_know_what_the_programs_know(self):
        run("bash", "-n", self.usr / "share/bash-completion/completions/baton")
        for shell, file in (("zsh", "zsh/vendor-completions/_baton"), ("fish", "fish/vendor_completions.d/baton.fish")):
            if shutil.which(shell):
                run(shell, "-n", self.usr / "share" / file)
        self.assertLessEqual({"serve", "ctl", "upgrade", "doctor"}, set(self.completed("baton")))
        self.assertLessEqual({"--model", "--port", "--scheduler.roles"}, set(self.completed("baton", "serve")))
        self.assertEqual({"fixed", "auto"}, set(self.completed("baton", "serve", "--scheduler.roles")))
        self.assertLessEqual({"show", "set", "restart"}, set(self.completed("baton", "ctl")))
        self.assertLessEqual({"workers", "processes", "kv"}, set(self.completed("baton-ctl", "show")))
        self.assertLessEqual({"prefill", "decode", "mixed"},
                             set(self.completed("baton-ctl", "--run-dir", "/tmp/x", "set", "worker", "w", "role")))

    def test_scripts_and_unit(self):
        for script in (self.usr / "bin/baton", *(self.tree / "DEBIAN" / name for name in ("postinst", "prerm", "postrm"))):
            run("sh", "-n", script)
            self.assertTrue(os.access(script, os.X_OK))
        front = (self.usr / "bin/baton").read_text()
        self.assertNotIn("./baton ", "".join(line for line in front.splitlines(True) if not line.startswith("#")))
        self.assertNotIn(str(ROOT), front)
        unit = (self.usr / "lib/systemd/system/baton@.service").read_text()
        for setting in ("KillMode=process", "Restart=always", "OOMPolicy=continue", "RuntimeDirectoryPreserve=yes",
                        "User=baton", "ExecStart=/usr/bin/baton service %i"):
            self.assertIn("\n" + setting, unit)
        for closes_devices in ("ProtectClock", "PrivateDevices"):
            self.assertNotIn("\n" + closes_devices, unit)
        self.assertNotIn("--socket", unit, "of several models each scheduler has its own")
        if shutil.which("systemd-analyze"):
            place = self.usr / "lib/systemd/system/baton@.service"
            done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager",
                                   f"--root={self.tree}", "/" + str(place.relative_to(self.tree))],
                                  text=True, capture_output=True)
            if "Unknown" not in done.stderr and "unrecognized" not in done.stderr:  # older ones know no --offline
                self.assertEqual(0, done.returncode, done.stdout[-300:] + done.stderr)
                self.assertNotIn("Unknown key", done.stderr)

    def test_what_the_front_refuses(self):
        self.assertIn("baton_VERSION_amd64.deb", package("--help"))
        front = self.moved / "bin" / "baton"
        for arguments, complaint in ((["serve", "--model", "/nonexistent"], "there is no folder /nonexistent"),
                                     (["serve", "--device", "cuda"], "the package baton-cuda has those for GPUs"),
                                     (["serve", "--max-model-len", "5"], "here it is  --max_context"),
                                     (["test"], "unknown command 'test'"),
                                     (["upgrade", "--run_dir", "/nonexistent"], "no supervisor runs")):
            done = subprocess.run([front, *arguments], text=True, capture_output=True, timeout=60)
            self.assertEqual(1, done.returncode, arguments)
            self.assertIn(complaint, done.stderr)

    def test_what_a_service_starts(self):
        front, home = self.moved / "bin" / "baton", pathlib.Path(folders.temporary(self, "baton-service-"))
        environment = {"PATH": os.environ["PATH"], "RUNTIME_DIRECTORY": str(home / "run")}
        settings = self.moved / "etc" / "baton"
        (settings / "gpu.yaml").write_text("worker:\n  device: cuda\n")
        (settings / "bad.yaml").write_text("model: /nonexistent\nworkers: [{name: a, role: mixed}]\n")
        self.addCleanup((settings / "gpu.yaml").unlink)
        self.addCleanup((settings / "bad.yaml").unlink)
        # What starting again cannot mend has a status that systemd does not try again.
        for name, complaint in (("gpu", "baton-cuda"), ("none", "cannot read the configuration"), ("bad", "/nonexistent")):
            done = subprocess.run([front, "service", name], text=True, capture_output=True, timeout=60, env=environment)
            self.assertEqual(2, done.returncode, done.stdout + done.stderr)
            self.assertIn(complaint, done.stdout + done.stderr)
        port = free_port()
        (settings / "good.yaml").write_text(f"model: {ROOT}/demo/model\nfrontend: {{port: {port}}}\n"
                                            "workers: [{name: a, role: mixed}]\n")
        self.addCleanup((settings / "good.yaml").unlink)
        served = subprocess.Popen([front, "service", "good"], stdout=subprocess.DEVNULL, env=environment)
        try:
            wait_until(lambda: Bare.token(port), 60, "a token")
            self.assertEqual((self.moved / "lib/baton/bin/baton-supervisor").resolve(),
                             pathlib.Path(f"/proc/{served.pid}/exe").resolve())
        finally:
            served.terminate()
            self.assertEqual(0, served.wait(30))


class Cuda(unittest.TestCase):
    """Any host has this toolkit: a library of cuBLASLt's name that a C compiler made, and a worker that loads it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-package-cuda-"))
        cls.addClassCleanup(folders.remove, cls.folder)
        toolkit, cls.programs = cls.folder / "cuda-13.0", cls.folder / "bin"
        toolkit.mkdir()
        cls.programs.mkdir()
        (cls.folder / "lt.c").write_text("int cublasLtCreate(void) { return 13; }\n")
        (cls.folder / "worker.c").write_text("#include <stdio.h>\nint cublasLtCreate(void);\n"
                                             'int main(void) { printf("cuBLASLt %d\\n", cublasLtCreate()); return 0; }\n')
        library = toolkit / "libcublasLt.so.13"
        run("gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, cls.folder / "lt.c")
        # A long folder, as the linker leaves one: another is written in its place.
        run("gcc", "-o", cls.programs / "baton-worker", cls.folder / "worker.c", library, f"-Wl,-rpath,{toolkit}")
        for name in PROGRAMS - {"worker"}:
            (cls.programs / f"baton-{name}").symlink_to(BUILD / "bin" / f"baton-{name}")
        cls.make("out")
        cls.tree = cls.folder / "out" / "stage" / "baton-cuda"
        cls.moved = cls.folder / "out" / "stage" / "baton-9.8.7-x86_64-linux"

    @classmethod
    def make(cls, output, *more):
        return run(sys.executable, ROOT / "packaging" / "package.py", "--device", "cuda", "--cuda-programs", cls.programs,
                   "--stage", "--version", "9.8.7", "--output", cls.folder / output, *more)

    def test_it_stands_beside_the_first_package(self):
        files = {str(path.relative_to(self.tree)) for path in self.tree.rglob("*")
                 if not path.is_dir() and "DEBIAN" not in path.parts}
        first = self.tree.parent / "baton"
        self.assertFalse([file for file in files if (first / file).exists()], "no file is in both")
        lib = "usr/lib/baton/"
        self.assertEqual({f"{lib}cuda/bin/baton-{name}" for name in PROGRAMS} | {f"{lib}lib/libcublasLt.so.13",
                         "etc/baton/1mixed-cuda.yaml", "etc/baton/1p1d-cuda.yaml", "usr/share/doc/baton-cuda/copyright"}, {file for file in files if not (self.tree / file).is_symlink()})
        control = (self.tree / "DEBIAN" / "control").read_text()
        self.assertIn("baton (= 9.8.7)", re.search(r"Depends: (.*)", control).group(1))
        self.assertNotIn("cublas", control)
        run("dpkg-deb", "--root-owner-group", "-Znone", "--build", self.tree, self.folder / "cuda.deb")
        self.assertEqual("baton-cuda\n", run("dpkg-deb", "--field", self.folder / "cuda.deb", "Package"))

    def test_the_licences_of_what_is_bundled(self):
        terms = "redistributable"
        for package, bundled in (("baton", "libcudart, libcupti"), ("baton-cuda", "libcublasLt")):
            text = (self.tree.parent / package / "usr/share/doc" / package / "copyright").read_text()
            self.assertIn(bundled, text)
            self.assertIn(terms, text.lower())
            self.assertIn((ROOT / "LICENSE").read_text(), text)

    def system_calls(self, package, script, *arguments, before=""):
        """What a script asks of systemd where a service on CPUs and one on GPUs run, and one on GPUs is between two
        processes."""
        home = pathlib.Path(folders.temporary(self, "baton-scripts-"))
        (home / "baton").mkdir()
        (home / "baton" / "plain.yaml").write_text("# device: cuda is another one\nworkers: [{name: a, role: mixed}]\n")
        (home / "baton" / "gpu.yaml").write_text("worker: {device: cuda}\n")
        (home / "default").write_text(before)
        (home / "baton" / "dying.yaml").write_text("worker: {device: cuda}\n")
        (home / "systemctl").write_text(
            '#!/bin/sh\ncase $1 in list-units) for state in active reloading activating; do case ",${4#*=}," in *,$state,*)\n'
            'case $state in active) unit=plain ;; reloading) unit=gpu ;; *) unit=dying ;; esac\n'
            'echo "baton@$unit.service loaded $state x" ;; esac; done ;;\n'
            f'show) echo 0 ;; *) echo "$*" >>{home}/calls ;; esac\n')
        (home / "getent").write_text("#!/bin/sh\n")  # the user exists
        for program in ("systemctl", "getent"):
            (home / program).chmod(0o755)
        text = (self.tree.parent / package / "DEBIAN" / script).read_text()
        for there, here in (("/run/systemd/system", home), ("/etc/baton", home / "baton"), ("/etc/default/baton", home / "default")):
            text = text.replace(there, str(here))
        (home / script).write_text(text)
        run("sh", home / script, *arguments, env={"PATH": f"{home}:{os.environ['PATH']}"})
        calls = home / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def test_each_package_tends_the_services_of_its_own_programs(self):
        reload = "reload --no-block baton@{}.service"
        self.assertEqual(["daemon-reload", reload.format("plain")], self.system_calls("baton", "postinst", "configure", "9.8.6"))
        self.assertEqual([reload.format("gpu")], self.system_calls("baton-cuda", "postinst", "configure", "9.8.6"))
        self.assertEqual([], self.system_calls("baton-cuda", "postinst", "configure", ""), "the first installation")
        for no in ("no", '"no"', "'no' # not at night", "yes\nRELOAD_ON_UPGRADE=no"):
            setting = f"RELOAD_ON_UPGRADE={no}\n"
            self.assertEqual([], self.system_calls("baton-cuda", "postinst", "configure", "9.8.6", before=setting), setting)
        self.assertEqual([reload.format("gpu")],
                         self.system_calls("baton-cuda", "postinst", "configure", "9.8.6", before='RELOAD_ON_UPGRADE="yes"\n'))
        self.assertEqual(["stop baton@gpu.service", "stop baton@dying.service"],
                         self.system_calls("baton-cuda", "prerm", "remove"))
        self.assertEqual([], self.system_calls("baton-cuda", "prerm", "upgrade", "9.8.8"))
        self.assertEqual(["stop baton@*.service"], self.system_calls("baton", "prerm", "remove"))

    def test_the_worker_finds_the_toolkits_library_where_it_is_installed(self):
        root = self.folder / "root"
        for tree in (self.tree.parent / "baton", self.tree):
            shutil.copytree(tree / "usr" / "lib", root / "usr" / "lib", symlinks=True, dirs_exist_ok=True, copy_function=os.link)
        for there in (root / "usr/lib/baton", self.moved / "lib/baton"):
            worker = there / "cuda" / "bin" / "baton-worker"
            self.assertEqual(["$ORIGIN/../lib"], dynamic(worker)[1])
            self.assertEqual("cuBLASLt 13\n", run(worker, env={}))
            self.assertIn(str(there), run("ldd", worker))
            for name in PROGRAMS:
                self.assertNotIn("not found", run("ldd", there / "cuda" / "bin" / f"baton-{name}"))

    def test_what_is_refused(self):
        for arguments, complaint in ((["--cuda-libraries", "packages"], "no package owns"),
                                     (["--cuda-programs", self.folder / "cuda-13.0"], "there is no baton-ctl")):
            with self.assertRaisesRegex(AssertionError, complaint):
                self.make("refused", *arguments)

    def test_the_front_serves_on_gpus_and_asks_after_the_driver(self):
        front = self.moved / "bin" / "baton"
        done = subprocess.run([front, "serve", "--device", "cuda", "--model", "/nonexistent"], text=True, capture_output=True,
                              timeout=60)
        self.assertIn("there is no folder /nonexistent", done.stderr)
        tools = self.folder / "tools"
        tools.mkdir()
        for driver, answer in (("580.95.05", "ok       a GPU's driver 580.95.05"), ("550.1", "CUDA 13 needs 580"),
                               ("", "nvidia-smi names none")):
            (tools / "nvidia-smi").write_text(f"#!/bin/sh\necho '{driver}'\n")
            (tools / "nvidia-smi").chmod(0o755)
            done = subprocess.run([front, "doctor"], text=True, capture_output=True, timeout=60,
                                  env={"PATH": f"{tools}:{os.environ['PATH']}"})
            self.assertIn(answer, done.stdout)
            self.assertIn("ok       cuda/bin/baton-worker", done.stdout)


class Load(threading.Thread):
    """A client that reads one greedy stream after another and remembers what differs from the undisturbed text."""

    def __init__(self, port, prompt):
        super().__init__(daemon=True)
        self.port, self.prompt = port, prompt
        self.over, self.wrong, self.whole = threading.Event(), [], 0
        self.expected = self.read()

    def read(self):
        body = {"prompt": self.prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        text = ""
        with urllib.request.urlopen(request, timeout=120) as stream:
            for line in stream:
                data = line.removeprefix(b"data: ").strip() if line.startswith(b"data: ") else b""
                if data == b"[DONE]":
                    return text
                if data:
                    event = json.loads(data)
                    assert "error" not in event, event
                    text += "".join(choice["text"] for choice in event["choices"])
        raise AssertionError("the stream broke off")

    def run(self):
        while not self.over.is_set():
            try:
                if self.read() == self.expected:
                    self.whole += 1
                else:
                    self.wrong.append("another text")
            except (OSError, AssertionError) as failure:
                self.wrong.append(repr(failure))


class Moved(Staged):
    def test_an_upgrade_under_load_drops_nothing(self):
        home = pathlib.Path(folders.temporary(self, "baton-moved-"))
        shutil.copytree(self.moved, home / "baton", symlinks=True)
        front, run_dir, port = home / "baton" / "bin" / "baton", home / "run", free_port()
        log = open(home / "serve.log", "wb")
        self.addCleanup(log.close)
        served = subprocess.Popen([front, "serve", "--port", str(port), "--run_dir", run_dir], stdout=log, stderr=log,
                                  env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

        def end():
            served.terminate()
            served.wait(30)
        self.addCleanup(end)
        wait_until(lambda: "Baton is ready" in (home / "serve.log").read_text(), 120, "ready")
        loads = [Load(port, prompt) for prompt in PROMPTS]
        for load in loads:
            load.start()
        # As dpkg does it: another file takes each one's place.
        for path in (home / "baton" / "lib/baton").rglob("*"):
            if path.is_file() and not path.is_symlink():
                shutil.copy2(path, path.with_name(path.name + ".new"))
                path.with_name(path.name + ".new").replace(path)
        said = run(front, "upgrade", "--run_dir", run_dir)
        self.assertEqual(["supervisor", "memory", "scheduler", "decode0", "prefill0", "frontend0"],
                         [line.split()[0] for line in said.splitlines()])
        whole = sum(load.whole for load in loads)
        wait_until(lambda: sum(load.whole for load in loads) >= whole + len(loads), 60, "streams go on")
        for load in loads:
            load.over.set()
        for load in loads:
            load.join(120)
        self.assertEqual([], [wrong for load in loads for wrong in load.wrong])
        print(f"{sum(load.whole for load in loads)} streams, none differs", flush=True)


class Bare(unittest.TestCase):
    """The whole way of a newcomer: a bare system without compilers, apt, the first token."""

    def test_a_bare_system(self):
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            self.skipTest("needs root and debootstrap")
        name = run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").strip()
        home = pathlib.Path(folders.temporary(self, "baton-bare-"))
        root = home / "root"
        if subprocess.run(["debootstrap", "--variant=minbase", name, root], stdout=subprocess.DEVNULL).returncode != 0:
            self.skipTest("debootstrap has no mirror")
        package("--level", "3", "--output", home / "out")
        deb = next((home / "out").glob("baton_*.deb"))
        print(f"{deb.name}: {deb.stat().st_size / 1e6:.0f} MB", flush=True)
        self.assertLess(deb.stat().st_size, 200e6)
        shutil.copy(deb, root / "root" / "baton.deb")
        shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
        (root / "dev" / "shm").mkdir(exist_ok=True)
        for kind, place in (("proc", "proc"), ("tmpfs", "dev/shm")):
            run("mount", "-t", kind, kind, root / place)
            self.addCleanup(subprocess.run, ["umount", "-l", root / place])
        chroot = ["chroot", root, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"]
        run(*chroot, "apt-get", "update")
        port = free_port()
        began = time.monotonic()
        run(*chroot, "apt-get", "install", "-y", "/root/baton.deb")
        installed = time.monotonic()
        with open(home / "serve.log", "wb") as log:
            served = subprocess.Popen([*chroot, "baton", "serve", "--port", str(port), "--run_dir", "/tmp/run"],
                                      stdout=log, stderr=log)
        try:
            wait_until(lambda: self.token(port), 120, "the first token")
            print(f"installed in {installed - began:.1f} s, first token {time.monotonic() - began:.1f} s after the beginning",
                  flush=True)
            self.assertIn("Nothing is missing.", run(*chroot, "baton", "doctor", str(port + 1)))
            self.assertIn("decode0", run(*chroot, "baton", "ctl", "--socket", "/tmp/run/admin.sock", "show", "workers"))
        finally:
            served.terminate()
            served.wait(30)
        wants = root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(parents=True, exist_ok=True)
        for unit, leads_to in (("baton@lab.service", "baton@.service"), ("batonless@a.service", "batonless@.service")):
            (wants / unit).symlink_to(f"/lib/systemd/system/{leads_to}")
        run(*chroot, "dpkg", "--purge", "baton")
        self.assertEqual(["batonless@a.service"], [link.name for link in wants.glob("baton*")])
        self.assertFalse((root / "usr/lib/baton").exists())
        self.assertFalse((root / "etc/baton").exists())

    @staticmethod
    def token(port):
        with contextlib.suppress(OSError):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions",
                                             b'{"prompt": "The moon", "max_tokens": 1}',
                                             {"Content-Type": "application/json"})
            return urllib.request.urlopen(request, timeout=20).read()
        return None


if __name__ == "__main__":
    if not shutil.which("dpkg-shlibdeps") or not shutil.which("zstd"):
        print("skipped: apt-get install --no-install-recommends dpkg-dev zstd")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
