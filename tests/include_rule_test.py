"""Who may include what, and whether the documents name files that exist. Reads every C++ file of the
tree and every document; the rules are the tables below, and each of their entries must be used.

    ipc <- configs <- {frontend, memory, scheduler, workers}     those never include one another
    ipc <- text <- {frontend, workers}                   tokenizer, grammar engine, JSON Schema
"""

import fnmatch
import os
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}

# Folder -> folders of this project that it may include. tools/ and demo/ hold no C++.
MAY_INCLUDE = {
    "ipc": {"ipc"},
    "configs": {"configs", "ipc"},
    "text": {"text", "ipc"},
    "frontend": {"frontend", "text", "configs", "ipc"},
    "memory": {"memory", "configs", "ipc"},
    "scheduler": {"scheduler", "configs", "ipc"},
    "workers": {"workers", "text", "configs", "ipc"},
    "supervisor": {"supervisor", "configs", "ipc"},
    "planning": {"planning", "scheduler", "configs", "ipc"},
    "bench": {"bench", "planning", "text", "scheduler", "workers", "configs", "ipc"},
    "tests": {"tests", "bench", "planning", "supervisor", "frontend", "text", "memory", "scheduler", "workers",
              "configs", "ipc"},
}
FOLDERS = [*MAY_INCLUDE, "tools", "demo"]

# Library -> the only files outside tests/ that may include it.
LIBRARIES = [
    (["zmq.hpp"], ["ipc/zmq_channel.cpp", "ipc/zmq_publisher.cpp", "bench/bench_hops.cpp"]),
    (["msgpack*"], ["ipc/codec.cpp"]),
    (["boost/interprocess/*"], ["ipc/shm_region.cpp"]),
    (["pistache/*"], ["frontend/http/http_server.cpp"]),
    (["sentencepiece*"], ["text/tokenizer/sentencepiece*"]),
    (["pcre2.h"], ["text/tokenizer/regex.cpp"]),
    (["unicode/*"], ["text/tokenizer/unicode.cpp"]),
    (["xgrammar/*"], ["text/grammar/grammar_engine.cpp"]),
    (["curl/*"], ["frontend/http/otlp_post.cpp"]),
    (["openssl/*"], ["frontend/http/key_digest.cpp", "scheduler/state/grammar_key.cpp"]),
    (["xxhash.h"], ["workers/model/content_digest.cpp"]),
    (["zlib.h", "zstd.h"], ["frontend/http/content_coding.cpp"]),
    (["yaml-cpp/*"], ["configs/yaml_reader.cpp"]),
    (["ATen/*"], ["workers/model/cpu_step.h"]),
    (["cuda*.h"], ["workers/cuda/*", "memory/cuda_allocator.cpp", "bench/bench_gpu*"]),
    (["cublas*"], ["workers/cuda/linear/linear_library.*", "workers/cuda/linear/cublas_check.h"]),
    (["flashinfer/*"], ["workers/cuda/attention/attention_prefill*"]),
    (["nlohmann/*"], ["bench/*", "frontend/*", "ipc/explained.cpp", "ipc/log_line.cpp", "planning/*", "scheduler/admin/*", "supervisor/live_line.cpp", "text/*",
                      "workers/execute/*", "workers/model/*"]),
]
# What no file includes: wider or lower headers of the libraries above.
NEVER = ["torch/*", "c10/*", "dlpack/*", "nccl.h", "zmq.h", "zmq_addon.hpp"]

# The cores: values in, values out. No clock, socket, thread, file or log reaches them. All of
# scheduler/ is core but the shell.
CORE = ["scheduler/*", "memory/leases*", "memory/shared_weights*", "workers/protocol/*", "frontend/core/request_table*", "frontend/core/rendered_reply*",
        "frontend/succession/journal.*", "frontend/succession/journal_reader*", "frontend/succession/replay*",
        "frontend/succession/reply_records*", "ipc/kv_layout*",
        "ipc/types*", "ipc/messages*", "ipc/timing.*", "frontend/core/request_explainer*",
        "frontend/core/told_timing*", "frontend/core/trace_context*"]
SHELL = ["scheduler/main.cpp", "scheduler/scheduler_loop*", "scheduler/admin/admin_*",
         "scheduler/admin/ctl.cpp", "scheduler/admin/memory_ctl*", "scheduler/admin/event_trace*",
         "scheduler/admin/process_ctl*", "scheduler/admin/process_list*", "scheduler/admin/model_ctl*", "scheduler/admin/explain_ctl*", "scheduler/admin/top*",
         "scheduler/admin/scheduler_trace*", "scheduler/admin/trace_*"]
CORE_NEVER = ["chrono", "ctime", "time.h", "sys/*", "unistd.h", "thread", "mutex", "condition_variable",
              "future", "fstream", "iostream", "poll.h", "fcntl.h", "spdlog/*", "nlohmann/*",
              "ipc/process.h", "ipc/channel.h", "ipc/zmq_channel.h", "ipc/shm_region.h"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def matches(text, patterns):
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def problem_of(path, quote, target):
    """What is wrong with one include of the file at `path` (relative to the root), or None."""
    folder = path.split("/")[0]
    if matches(target, NEVER):
        return f"no file may include <{target}>"
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
    if folder not in MAY_INCLUDE:
        return f"{folder}/ holds no C++"
    if owner not in MAY_INCLUDE:
        return f'"{target}" does not start from the root; write "folder/{target}"'
    if owner in MAY_INCLUDE[folder]:
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


def unused_entries(root):
    """Entries of the tables that no file of the tree needs: they would let something in unseen."""
    includes = [(path.relative_to(root).as_posix(), match.group(1), match.group(2))
                for path in source_files(root)
                for match in INCLUDE.finditer(path.read_text(encoding="utf-8"))]
    paths = {path for path, _, _ in includes}
    # A header may include nothing: it counts as a file all the same.
    paths |= {path.relative_to(root).as_posix() for path in source_files(root)}
    unused = []
    for folder, owners in MAY_INCLUDE.items():
        used = {target.split("/")[0] for path, quote, target in includes
                if quote == '"' and path.startswith(folder + "/")}
        unused += [f"MAY_INCLUDE: {folder} includes nothing of {owner}"
                   for owner in sorted(owners - used - {folder})]
    for headers, users in LIBRARIES:
        hits = [(path, target) for path, _, target in includes
                if matches(target, headers) and not path.startswith("tests/")]
        unused += [f"LIBRARIES: no file includes {header}" for header in headers
                   if not any(matches(target, [header]) for _, target in hits)]
        unused += [f"LIBRARIES: {user} includes none of {', '.join(headers)}" for user in users
                   if not any(matches(path, [user]) for path, _ in hits)]
    for name, patterns in (("CORE", CORE), ("SHELL", SHELL)):
        unused += [f"{name}: no file is {pattern}" for pattern in patterns
                   if not any(matches(path, [pattern]) for path in paths)]
    return unused


CODE = re.compile(r"```.*?```|`([^`\n]+)`", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
FILE_NAME = re.compile(r"[\w*-]+\.(?:h|cpp|cu|cuh|cmake|sh)")
PATH = re.compile(r"[\w.*-]+(?:/[\w.*{},-]+)+/?")


def documents(root):
    return sorted([*root.glob("*.md"), *root.glob("*/README.md"), *root.glob("workers/*/README.md"),
                   *(root / "docs").rglob("*.md")])


def lost_paths(root, tracked):
    """Paths and names of source files in the documents (in backticks, or linked) that no file has.
    Paths count when they start with a folder of the tree, or with one of tests/ (docs/coverage.md)."""
    known = set(tracked) | {folder for file in tracked for folder in parents(file)}
    folders = {file.split("/")[0] for file in tracked if "/" in file}
    names = {file.rsplit("/", 1)[-1] for file in tracked}
    lost = []

    def exists(path):
        first = path.split("/")[0]
        starts = [""] * (first in folders) + ["tests/"] * (f"tests/{first}" in known)
        forms = [start + path + end for start in starts for end in ("", ".h", ".cpp", ".cu", ".py")]
        # Without such a beginning it is a path of another project, or of HTTP.
        return not starts or any(fnmatch.fnmatchcase(name, form) for form in forms for name in known)

    for document in documents(root):
        text = document.read_text(encoding="utf-8")
        here = document.relative_to(root).as_posix()
        for match in LINK.finditer(text):
            target = match.group(1)
            if "://" not in target and not (document.parent / target).exists():
                lost.append(f"{here}: the link to {target}")
        for match in CODE.finditer(text):
            words = (match.group(1) or "").split()
            if len(words) == 1 and FILE_NAME.fullmatch(words[0]):
                if not any(fnmatch.fnmatchcase(name, words[0]) for name in names):
                    lost.append(f"{here}: no file is called {words[0]}")
            for word in words:
                if PATH.fullmatch(word) and not exists(word.rstrip("/")):
                    lost.append(f"{here}: no file is {word}")
    return lost


def parents(file):
    parts = file.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]


def tracked_files(root):
    """All files but what is built or fetched (a source tree may come without git)."""
    skipped = {".git", ".deps", "build", "run", "__pycache__"}
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped]
        at = pathlib.Path(folder).relative_to(root)
        found += [(at / name).as_posix() for name in files]
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


def version_problem(cmake, changes):
    """The version stands in CMakeLists.txt; the newest heading of CHANGELOG.md says the same."""
    version = re.search(r"^project\(baton VERSION (\d+\.\d+\.\d+)\b", cmake, re.MULTILINE)
    heading = re.search(r"^## (?:Unreleased \((\d+\.\d+\.\d+)\)|(\d+\.\d+\.\d+), \d{4}-\d\d-\d\d)$", changes,
                        re.MULTILINE)
    if not version or not heading:
        return "no version in CMakeLists.txt or CHANGELOG.md"
    newest = heading.group(1) or heading.group(2)
    if version.group(1) != newest:
        return f"CMakeLists.txt says {version.group(1)}, CHANGELOG.md {newest}"
    return None


class IncludeRuleTest(unittest.TestCase):
    maxDiff = None

    def test_the_changes_know_the_version(self):
        files = [(ROOT / name).read_text(encoding="utf-8") for name in ("CMakeLists.txt", "CHANGELOG.md")]
        self.assertIsNone(version_problem(*files))

    def test_the_tree_follows_the_rules(self):
        self.assertGreater(len(list(source_files(ROOT))), 20, "no sources found: wrong folder?")
        self.assertEqual([], violations(ROOT))

    def test_every_entry_of_the_tables_is_needed(self):
        self.assertEqual([], unused_entries(ROOT))

    def test_the_documents_name_files_that_exist(self):
        self.assertEqual([], lost_paths(ROOT, tracked_files(ROOT)))

    def test_every_test_is_registered(self):
        self.assertEqual([], unregistered_tests(ROOT))


class SelfTest(unittest.TestCase):
    """Each rule finds what is planted for it."""

    PLANTED = {
        "frontend/a.cpp": ('#include "scheduler/plan/plan_step.h"', "frontend may not include scheduler"),
        "scheduler/a.cpp": ('#include "workers/protocol/worker_core.h"',
                            "scheduler may not include workers"),
        "workers/a.cu": ('#include "frontend/http/sse.h"', "workers may not include frontend"),
        "text/a.cpp": ('#include "frontend/http/sse.h"', "text may not include frontend"),
        "ipc/a.h": ('#include "configs/config.h"', "ipc may not include configs"),
        "configs/a.cpp": ('#include "frontend/http/sse.h"', "configs may not include frontend"),
        "supervisor/a.cpp": ('#include "scheduler/plan/plan_step.h"',
                             "supervisor may not include scheduler"),
        "planning/a.cpp": ('#include "workers/protocol/worker_core.h"',
                           "planning may not include workers"),
        "tools/a.cpp": ('#include "ipc/types.h"', "tools/ holds no C++"),
        "ipc/b.cpp": ("#include <zmq.hpp>", "only ipc/zmq_channel.cpp"),
        "scheduler/b.cpp": ("  #  include <msgpack.hpp>", "only ipc/codec.cpp"),
        "frontend/b.cpp": ("#include <pistache/endpoint.h>", "only frontend/http/http_server.cpp"),
        "workers/b.cpp": ("#include <boost/interprocess/mapped_region.hpp>", "only ipc/shm_region.cpp"),
        "workers/c.cpp": ("#include <cuda_runtime.h>", "only workers/cuda/*"),
        "scheduler/c.cpp": ("#include <ATen/ATen.h>", "only workers/model/cpu_step.h"),
        "workers/model/cpu_step.h": ("#include <torch/torch.h>", "no file may include <torch/torch.h>"),
        "scheduler/plan/plan_step.cpp": ("#include <chrono>", "the core takes time"),
        "scheduler/apply/apply_event.cpp": ('#include "ipc/process.h"', "the core takes time"),
        "workers/protocol/a.cpp": ("#include <thread>", "the core takes time"),
        "frontend/c.cpp": ('#include "sse.h"', "does not start from the root"),
    }
    FINE = {
        "frontend/http/http_server.cpp": "#include <pistache/endpoint.h>",
        "scheduler/main.cpp": '#include <chrono>\n#include "configs/config.h"',
        "planning/plan.cpp": '#include "scheduler/plan/plan_step.h"',
        "workers/d.cpp": '#include "text/tokenizer/tokenizer.h"',
        "tests/unit/a_test.cpp": '#include "workers/protocol/worker_core.h"',
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
            unused = unused_entries(root)
            self.assertIn("MAY_INCLUDE: bench includes nothing of workers", unused)
            self.assertIn("LIBRARIES: no file includes xgrammar/*", unused)
            self.assertIn("LIBRARIES: ipc/codec.cpp includes none of msgpack*", unused)
            self.assertIn("SHELL: no file is scheduler/admin/ctl.cpp", unused)
            self.assertNotIn("SHELL: no file is scheduler/main.cpp", unused)

    def test_versions_that_differ_are_found(self):
        cmake = "project(baton VERSION 1.2.3 LANGUAGES CXX)"
        self.assertIsNone(version_problem(cmake, "# Changes\n\n## 1.2.3, 2030-01-31\n\n## 1.2.2, 2030-01-30\n"))
        self.assertIsNone(version_problem(cmake, "## Unreleased (1.2.3)\n"))
        self.assertIn("1.2.4", version_problem(cmake, "## Unreleased (1.2.4)\n\n## 1.2.3, 2030-01-31\n"))
        self.assertIn("no version", version_problem(cmake, "## Soon\n"))

    def test_lost_paths_are_found_and_nothing_else(self):
        files = ["ipc/a.h", "ipc/b.cpp", "tests/unit/c_test.cpp", "docs/x.md", "docs/y.md"]
        text = """`ipc/a.h` `ipc/*.cpp` `ipc/` `ipc/b` `a.h` `unit/c_test.cpp` [y](y.md) `GET /v1/x`
`their/a.py` `https://a/b` [out](https://x.example/y.md) ```\nipc/in_a_block.h\n```
`ipc/gone.h` `gone.cpp` `ipc/gone` `unit/d_test.cpp` `ipc/*.cu` [z](z.md#part)"""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "docs/y.md").write_text("", encoding="utf-8")
            (root / "docs/x.md").write_text(text, encoding="utf-8")
            self.assertEqual(["docs/x.md: the link to z.md",
                              "docs/x.md: no file is ipc/gone.h",
                              "docs/x.md: no file is called gone.cpp",
                              "docs/x.md: no file is ipc/gone",
                              "docs/x.md: no file is unit/d_test.cpp",
                              "docs/x.md: no file is ipc/*.cu"], lost_paths(root, files))


if __name__ == "__main__":
    unittest.main(verbosity=2)
