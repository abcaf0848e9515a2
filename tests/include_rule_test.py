"""Who may include what. Reads every C++ file of the tree; the rules are the tables below.

    ipc <- configs <- {frontend, scheduler, workers}     those three never include one another
"""

import fnmatch
import os
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}
FOLDERS = ["ipc", "configs", "frontend", "scheduler", "workers", "tools", "tests", "demo"]

# Folder -> folders of this project that it may include.
MAY_INCLUDE = {
    "ipc": {"ipc"},
    "configs": {"configs", "ipc"},
    "frontend": {"frontend", "configs", "ipc"},
    "scheduler": {"scheduler", "configs", "ipc"},
    "workers": {"workers", "configs", "ipc"},
    "tools": {"tools", "configs", "ipc"},
    "tests": {"tests", "tools", "frontend", "scheduler", "workers", "configs", "ipc"},
    "demo": {"demo"},
}

# (file pattern, include pattern): exceptions to the table above.
ALSO = [
    ("tools/sim*", "scheduler/*"),           # the simulator drives the scheduler's core,
    ("tools/sim*", "tests/*"),               # with the fake workers of the tests
    ("tools/sim*", "tests/sim/*"),           # and lives with its tests
    ("tools/virtual_cluster*", "scheduler/*"),  # in virtual time, too
    ("tools/plan*", "scheduler/*"),
    ("tools/bench*", "scheduler/*"),         # benchmarks measure the cores
    ("tools/bench*", "workers/*"),
    ("tools/bench*", "frontend/*"),
    ("tools/load*", "frontend/tokenizer/*"),
    ("workers/grammar_masks*", "frontend/grammar/grammar_engine.h"),  # a grammar is about the texts
    ("workers/grammar_masks*", "frontend/tokenizer/*"),               # of tokens
]

# Library -> the only files outside tests/ that may include it.
LIBRARIES = [
    (["zmq.h", "zmq.hpp", "zmq_addon.hpp"], ["ipc/zmq_channel.*"]),
    (["msgpack*"], ["ipc/codec*"]),
    (["boost/interprocess/*"], ["ipc/shm_region.*"]),
    (["pistache/*"], ["frontend/http_server*"]),
    (["sentencepiece*"], ["frontend/tokenizer/sentencepiece*"]),
    (["pcre2.h"], ["frontend/tokenizer/regex.cpp"]),
    (["unicode/*"], ["frontend/tokenizer/unicode.cpp"]),
    (["xgrammar/*", "dlpack/*"], ["frontend/grammar/grammar_engine.cpp"]),
    (["yaml-cpp/*"], ["configs/*"]),
    (["torch/*", "ATen/*", "c10/*"], ["workers/*", "tools/bench*"]),
    (["cuda*.h", "cublas*", "nccl.h", "flashinfer/*"],
     ["workers/*", "ipc/cuda_ipc.*", "tools/bench_gpu*"]),
    (["nlohmann/*"], ["frontend/*", "workers/*", "scheduler/admin*", "scheduler/*_trace*",
                      "configs/*", "tools/*"]),
]

# The scheduler's core: values in, values out. No clock, socket, thread, file or log reaches it. All
# of scheduler/ is core but these.
CORE = ["scheduler/*", "ipc/kv_layout*", "ipc/types*", "ipc/messages*"]
SHELL = ["scheduler/main.cpp", "scheduler/scheduler_loop*", "scheduler/*_link*", "scheduler/admin*",
         "scheduler/*_trace*", "scheduler/metrics*"]
CORE_NEVER = ["chrono", "ctime", "time.h", "sys/*", "unistd.h", "thread", "mutex", "condition_variable",
              "future", "fstream", "iostream", "poll.h", "fcntl.h", "spdlog/*", "nlohmann/*",
              "ipc/process.h", "ipc/channel.h", "ipc/zmq_channel.h", "ipc/shm_region.h"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def matches(text, patterns):
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def problem_of(path, quote, target):
    """What is wrong with one include of the file at `path` (relative to the root), or None."""
    folder = path.split("/")[0]
    for headers, users in LIBRARIES:
        if matches(target, headers) and folder != "tests" and not matches(path, users):
            return f"only {', '.join(users)} may include <{target}>"
    is_core = matches(path, CORE) and not matches(path, SHELL)
    if is_core and matches(target, CORE_NEVER):
        return f"the core takes time and bytes as values; it may not include {target}"
    if quote == "<" or target == "baton_version.h":
        return None
    owner = target.split("/")[0]
    if folder == "tests" and "/" not in target:
        return None  # a helper that stands beside its tests
    if owner not in MAY_INCLUDE:
        return f'"{target}" does not start from the root; write "folder/{target}"'
    if owner in MAY_INCLUDE[folder]:
        return None
    if any(fnmatch.fnmatchcase(path, file) and fnmatch.fnmatchcase(target, what)
           for file, what in ALSO):
        return None
    return f"{folder} may not include {owner}"


def source_files(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def violations(root):
    found = []
    for path in source_files(root):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            why = problem_of(name, match.group(1), match.group(2))
            if why:
                line = text.count("\n", 0, match.start(2)) + 1
                found.append(f"{name}:{line}: {why}")
    return found


def unregistered_tests(root):
    """Test programs that no CMake file names: they would never run."""
    lists = [p.read_text(encoding="utf-8") for p in (root / "tests").rglob("CMakeLists.txt")]
    lists += [p.read_text(encoding="utf-8") for p in (root / "tests").rglob("*.cmake")]
    words = set(re.findall(r"[\w./-]+", "\n".join(lists)))
    basenames = {word.rsplit("/", 1)[-1] for word in words}
    tests = [*(root / "tests").rglob("*_test.cpp"), *(root / "tests").rglob("test_*.py"),
             *(root / "tests").rglob("*_test.py")]
    return sorted(p.relative_to(root).as_posix() for p in tests
                  if p.name not in basenames and p.stem not in basenames)


class IncludeRuleTest(unittest.TestCase):
    maxDiff = None

    def test_the_tree_follows_the_rules(self):
        self.assertGreater(len(list(source_files(ROOT))), 20, "no sources found: wrong folder?")
        self.assertEqual([], violations(ROOT))

    def test_every_test_is_registered(self):
        self.assertEqual([], unregistered_tests(ROOT))


class SelfTest(unittest.TestCase):
    """Each rule finds what is planted for it."""

    PLANTED = {
        "frontend/a.cpp": ('#include "scheduler/plan_step.h"', "frontend may not include scheduler"),
        "scheduler/a.cpp": ('#include "workers/worker_core.h"', "scheduler may not include workers"),
        "workers/a.cu": ('#include "frontend/sse.h"', "workers may not include frontend"),
        "ipc/a.h": ('#include "configs/config.h"', "ipc may not include configs"),
        "configs/a.cpp": ('#include "frontend/sse.h"', "configs may not include frontend"),
        "tools/ctl.cpp": ('#include "scheduler/plan_step.h"', "tools may not include scheduler"),
        "ipc/b.cpp": ("#include <zmq.hpp>", "only ipc/zmq_channel.*"),
        "scheduler/b.cpp": ("  #  include <msgpack.hpp>", "only ipc/codec*"),
        "frontend/b.cpp": ("#include <pistache/endpoint.h>", "only frontend/http_server*"),
        "workers/b.cpp": ("#include <boost/interprocess/mapped_region.hpp>", "only ipc/shm_region.*"),
        "scheduler/c.cpp": ("#include <torch/torch.h>", "only workers/*"),
        "scheduler/plan_step.cpp": ("#include <chrono>", "the core takes time"),
        "scheduler/apply_event.cpp": ('#include "ipc/process.h"', "the core takes time"),
        "frontend/c.cpp": ('#include "sse.h"', "does not start from the root"),
    }
    FINE = {
        "frontend/http_server.cpp": "#include <pistache/endpoint.h>",
        "scheduler/main.cpp": '#include <chrono>\n#include "configs/config.h"',
        "tools/sim_run.cpp": '#include "scheduler/plan_step.h"',
        "tests/unit/a_test.cpp": '#include "workers/worker_core.h"',
        "tests/unit/b_test.cpp": "// nothing",
        "tests/unit/CMakeLists.txt": "baton_test(a_test SOURCES a_test.cpp)",
    }

    def test_planted_violations_are_found_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**{n: t for n, (t, _) in self.PLANTED.items()}, **self.FINE}.items():
                os.makedirs((root / name).parent, exist_ok=True)
                (root / name).write_text(f"// a file\n{text}\n", encoding="utf-8")
            found = violations(root)
            self.assertEqual(len(self.PLANTED), len(found), found)
            for name, (_, why) in self.PLANTED.items():
                self.assertTrue(any(f.startswith(f"{name}:2: ") and why in f for f in found),
                                f"{name}: {found}")
            self.assertEqual(["tests/unit/b_test.cpp"], unregistered_tests(root))


if __name__ == "__main__":
    unittest.main(verbosity=2)
