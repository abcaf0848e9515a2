"""Commands in the documents' `sh` blocks, given to the real programs: those that can run do, of the others the options are
looked up. A command that is neither, and no reason stands in SKIPPED, fails."""

import contextlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from cluster import BIN, SOURCE, Cluster, free_port

BUILD = pathlib.Path(os.environ.get("BATON_BUILD_DIR", "build/cpu"))
MODEL = SOURCE / "demo" / "model"

# First words, and why nothing of them is looked at.
SKIPPED = {
    "apt": "installs packages", "cp": "of an installed system", "systemctl": "needs systemd", "journalctl": "needs systemd",
    "tar": "of a package that is not built here", "grep": "reads what a command before it prints",
    "kill": "tests/e2e/test_death.py kills", "lm_eval": "another project's (tests/e2e/test_lm_eval.py)",
    "promtool": "another project's", "prometheus": "another project's",
    "baton-bench-gpu-linear": "built with CUDA alone", "baton-bench-worker": "build/cpu/bin/baton-bench-worker is looked at",
}
# Of curl: what the served demo cannot answer.
OTHER_SERVERS = {
    "/v1/embeddings": "an embedding model", '"model": "small"': "several models",
}


def documents():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=SOURCE, capture_output=True, text=True)
    if listed.returncode == 0:
        return [SOURCE / name for name in listed.stdout.split()]
    return [path for path in SOURCE.rglob("*.md") if not {".deps", "build"} & set(path.relative_to(SOURCE).parts)]


def commands(text):
    """Word lists, one a simple command: `a | b` are two, redirections are left out."""
    found = []
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.M | re.S):
        pending = ""
        for line in block.replace("\\\n", " ").splitlines():
            pending += line + "\n"
            lexer = shlex.shlex(pending, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            try:
                words = list(lexer)
            except ValueError:  # a quotation goes on in the next line
                continue
            pending = ""
            command = []
            for word in [*words, ";"]:
                if set(word) <= set("();<>|&"):
                    if command and command[0] not in (">", "<"):
                        found.append(command)
                    command = [word] if word in (">", "<") else []
                else:
                    command.append(word)
        assert not pending.strip(), pending
    return found


def options_of(words):
    return [word.split("=")[0] for word in words if re.match(r"--[a-zA-Z]", word)]


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        # Every dialect, each on a free port in place of the one that the documents name.
        ports = re.findall(r"{port: (\d+), dialects: \[([^]]*)\]}", (SOURCE / "configs" / "dialects.yaml").read_text())
        cls.ports = {port: free_port() for port, _ in ports}
        cls.baton = Cluster(fake=True, frontend={"listen": [
            {"port": cls.ports[port], "dialects": dialects.split(", ")} for port, dialects in ports]})
        cls.baton.frontends["frontend0"] = cls.ports["8000"]
        cls.stack.enter_context(cls.baton)
        cls.folder = cls.stack.enter_context(tempfile.TemporaryDirectory())

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def run_command(self, words, **more):
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, cwd=self.folder, **more)

    def has_options(self, words, help_text):
        for option in options_of(words):
            name = re.escape(option).replace("_", "[-_]").replace(r"\-", "[-_]")
            self.assertRegex(help_text, rf"[-_]{{2}}{name[len('[-_][-_]'):]}(?![\w-])", f"{' '.join(words)}: no option {option}")

    def help_of(self, *words):
        done = self.run_command([*words, "--help"])
        self.assertEqual(0, done.returncode, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def serve(self, words):
        given, i = [], 0
        while i < len(words):
            name, _, value = words[i].partition("=")
            if name in ("--model", "--config", "--device"):
                if not value:
                    i += 1
                    value = words[i]
                # What is on the reader's machine: here its like.
                value = {"--model": str(MODEL), "--device": "cpu"}.get(name) or \
                    (value if (SOURCE / value).exists() else str(SOURCE / "configs" / "1p1d.yaml"))
                given.append(f"{name}={value}")
            else:
                given.append(words[i])
            i += 1
        done = self.run_command(["sh", SOURCE / "baton", "serve", *given, *([] if any("device" in text for text in given) else ["--device=cpu"]), "--dry-run"])
        self.assertEqual(0, done.returncode, f"serve {' '.join(words)}: {done.stdout}{done.stderr}")
        self.assertIn("would serve", done.stdout)

    def ctl(self, words):
        done = self.run_command([BIN / "baton-ctl", "--run-dir", self.baton.folder / "run",
                                 "--socket", self.baton.folder / "run" / "admin.sock", *words])
        self.assertEqual(0, done.returncode, f"ctl {' '.join(words)}: {done.stdout}{done.stderr}")

    def baton_command(self, words):
        name, rest = words[0], words[1:]
        if name == "serve":
            self.serve(rest)
        elif name == "ctl":
            self.ctl(rest)
        elif name == "trace":
            self.has_options(rest, self.help_of(BIN / "baton-ctl"))
            self.ctl(["trace", "--seconds", "0.2", "-o", "trace.json"])
        elif name in ("top", "explain"):
            self.has_options(rest, self.help_of(BIN / "baton-ctl"))
        elif name == "plan":
            self.has_options(rest, self.help_of(BIN / "baton-plan"))
        elif name == "loadgen":
            self.has_options(rest, self.help_of(sys.executable, SOURCE / "tools" / "loadgen", rest[0]))
        elif name in ("gateway", "app"):
            self.has_options(rest, self.help_of(sys.executable, SOURCE / "tools" / name))
        elif name in ("upgrade", "package"):
            self.has_options(rest, self.help_of("sh", SOURCE / "baton", name))
        else:
            usage = self.run_command(["sh", SOURCE / "baton", "help"]).stdout
            section = re.search(rf"^  {re.escape(name)}\b.*\n(?:     .*\n)*", usage, re.M)
            self.assertIsNotNone(section, f"baton {name}: no such command")
            self.has_options(rest, section.group())
            if name == "build":
                targets = (BUILD / "build.ninja").read_text()
                for target in rest:
                    self.assertTrue(target.startswith("--") or f"\nbuild {target}: phony" in targets, f"no target {target}")

    def curl(self, words):
        if any(text in " ".join(words) for text in OTHER_SERVERS):
            return
        words = [re.sub(r"^(?:http://)?(?:127\.0\.0\.1|localhost):(\d+)", lambda at: f"http://127.0.0.1:{self.ports[at[1]]}", word)
                 for word in words]
        done = self.run_command([*words, "-sS", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}"])
        self.assertEqual(0, done.returncode, f"{words}: {done.stderr}")
        self.assertEqual("200", done.stdout[-3:], f"{words}")

    def script(self, path, words):
        file = SOURCE / path
        self.assertTrue(file.is_file(), f"{path} does not exist")
        # A script of a package has its options there.
        text = file.read_text() + "".join(other.read_text() for other in (SOURCE / "tools").glob("loadgen/*.py"))
        for option in options_of(words):
            self.assertIn(f'"{option}"', text, f"{path}: no option {option}")

    def check(self, words, used):
        name = words[0]
        if name in SKIPPED:
            used.add(name)
        elif name in ("./baton", "baton") or name.endswith("/baton"):
            self.baton_command(words[1:])
        elif name == "ctest":
            pattern = words[words.index("-R") + 1] if "-R" in words else "."
            tests = self.run_command(["ctest", "--test-dir", BUILD.absolute(), "-N"]).stdout
            names = re.findall(r"Test +#\d+: (\S+)", tests)
            self.assertTrue(any(re.search(pattern, each) for each in names), f"no test matches {pattern}")
        elif name == "curl":
            self.curl(words)
        elif name == "python3" or name.endswith(".py"):
            path, *rest = words[1:] if name == "python3" else words
            self.script(path, rest)
        elif name.startswith("build/cpu/bin/"):
            self.has_options(words[1:], self.help_of(BIN / name.removeprefix("build/cpu/bin/")))
        else:
            self.fail(f"{' '.join(words)}: neither checked nor in SKIPPED")

    def test_commands_in_blocks(self):
        used, count = set(), 0
        for path in documents():
            for words in commands(path.read_text()):
                with self.subTest(document=str(path.relative_to(SOURCE)), command=" ".join(words)[:200]):
                    self.check(words, used)
                    count += 1
        self.assertGreater(count, 90)
        self.assertEqual(set(SKIPPED), used, "a reason in SKIPPED that no command needs")

    def test_options_of_serve_in_the_text(self):
        """`--port 8000 ...` without a program before it means ./baton serve."""
        for name in ("api.md", "dialects.md"):
            for span in re.findall(r"`(--[^`]+)`", (SOURCE / "docs" / name).read_text()):
                words = shlex.split(span)
                if len(words) > 1 or "=" in span:
                    with self.subTest(document=name, options=span):
                        self.serve(words)

    def test_spellings_of_serve(self):
        for words in (["--listen", "8000=openai,lab", "--listen", "8835=mindspore"], ["--dialects", "openai,tgi"],
                      ["--allowed_origins", "http://localhost:5173"], ["--allowed-origins=*"], ["--max-context", "512"],
                      ["--run-dir", "/tmp/x-y"], ["--worker.pool-mib=64"], ["--log-level", "debug"]):
            with self.subTest(options=words):
                self.serve(words)

    def test_ctl_takes_the_spelling_of_serve(self):
        done = self.run_command([BIN / "baton-ctl", "--run_dir", self.baton.folder / "run", "audit"])
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_every_program_has_a_version(self):
        programs = [path for path in sorted(BIN.glob("baton-*")) if path.is_file()]
        self.assertGreater(len(programs), 6)
        for program in programs:
            with self.subTest(program=program.name):
                done = self.run_command([program, "--version"])
                self.assertEqual(0, done.returncode, done.stderr)
                self.assertRegex(done.stdout, r"\d+\.\d+\.\d+ \([0-9a-f]{12}\)|\d+\.\d+\.\d+ \(unknown\)")


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
