"""tests/run_tests.py: failed tests are retried once, flaky ones are named, the closing line and status are right."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
SCRIPT = ROOT / "tests" / "run_tests.py"
# Fails the first time, passes the second.
FLAKY = "test -e seen && exit 0; touch seen; exit 1"
# Fails always, and counts its runs in a file.
ALWAYS = "echo x >>{0}; exit 1"


class RunTests(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.records = self.folder / "records"

    def script(self, *arguments):
        return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True,
                              timeout=120)

    def tree(self, name, tests):
        """A build tree whose tests are shell commands."""
        tree = self.folder / name
        tree.mkdir()
        (tree / "CTestTestfile.cmake").write_text("".join(
            f'add_test({test} "sh" "-c" "{command}")\n'
            f'set_tests_properties({test} PROPERTIES LABELS "{label}" WORKING_DIRECTORY "{tree}")\n'
            for test, (label, command) in tests.items()))
        return tree

    def run_and_finish(self, *options, **trees):
        said = ""
        for name, tests in trees.items():
            done = self.script("run", self.records, self.tree(name, tests), *options)
            self.assertEqual(0, done.returncode, done.stderr)
            said += done.stdout
        done = self.script("finish", self.records, self.folder)
        return done.returncode, said + done.stdout

    def test_all_pass(self):
        status, said = self.run_and_finish("--retry", cpu={"a": ("unit", "exit 0"), "b": ("e2e", "exit 0")})
        self.assertEqual(0, status)
        self.assertTrue(said.endswith("\n2 passed, 0 failed\n"), said)
        self.assertNotIn("flaky", said)

    def test_a_test_that_fails_once_is_flaky(self):
        status, said = self.run_and_finish("--retry", cpu={"a": ("unit", "exit 0"), "b.c": ("unit", FLAKY)},
                                           asan={"d": ("unit", FLAKY)})
        self.assertEqual(0, status)
        self.assertTrue(said.endswith("\nflaky: b.c\nflaky: d in asan\n3 passed, 0 failed\n"), said)

    def test_a_test_that_fails_twice_has_failed(self):
        log = self.folder / "log"
        status, said = self.run_and_finish("--retry", cpu={"a": ("unit", "exit 0"), "b": ("unit", ALWAYS.format(log)),
                                                           "bc": ("unit", "exit 0")})
        self.assertEqual(1, status)
        self.assertTrue(said.endswith("\nfailed: b\n2 passed, 1 failed\n"), said)
        self.assertEqual("x\nx\n", log.read_text(), "it ran twice, not more often")
        self.assertNotIn("flaky: ", said)

    def test_without_retry_one_failure_counts(self):
        status, said = self.run_and_finish(cpu={"a": ("unit", "exit 0"), "b": ("unit", FLAKY)})
        self.assertEqual(1, status)
        self.assertTrue(said.endswith("\n1 passed, 1 failed\n"), said)

    def test_many_failures_are_not_retried(self):
        log = self.folder / "log"
        tests = {f"t{i}": ("unit", ALWAYS.format(log)) for i in range(11)}
        status, said = self.run_and_finish("--retry", cpu=tests)
        self.assertEqual(1, status)
        self.assertEqual(11, len(log.read_text().split()))
        self.assertTrue(said.endswith("\n0 passed, 11 failed\n"), said)

    def test_a_tree_without_tests_has_failed(self):
        status, said = self.run_and_finish("--retry", cpu={})
        self.assertEqual(1, status)
        self.assertTrue(said.endswith("\n0 passed, 1 failed\n"), said)

    def test_nothing_recorded_is_no_success(self):
        self.records.write_text("")
        self.assertEqual(1, self.script("finish", self.records, self.folder).returncode)

    def test_checks_count_and_are_named(self):
        self.script("note", self.records, "check=compile cuda", "passed=false")
        status, said = self.run_and_finish("--retry", cpu={"a": ("unit", "exit 0")})
        self.assertEqual(1, status)
        self.assertTrue(said.endswith("\nfailed: compile cuda\n1 passed, 1 failed\n"), said)

    def test_the_table_shows_phases_compilers_and_labels(self):
        began = time.time()
        for fields in ([f"began={began}"], ["phase=setup", "seconds=7"], ["phase=compile cpu", "seconds=60"],
                       ["phase=tests cpu", "seconds=9"]):
            self.script("note", self.records, *fields)
        (self.folder / "cpu").mkdir()
        stamp = int((began + 5) * 1e9)
        (self.folder / "cpu" / ".ninja_log").write_text(
            "# ninja log v5\n" + f"0\t90000\t{stamp}\ta.o\tf0\n" + f"0\t90000\t{stamp}\ta.d\tf0\n"
            + f"1\t10001\t{stamp}\tb.o\tf1\n" + f"1\t50001\t{int((began - 50) * 1e9)}\told.o\tf2\n")
        with open(self.records, "a") as file:
            file.write(json.dumps({"tree": "cpu", "passed": 3, "failed": [], "flaky": [], "failures": [],
                                   "labels": {"unit": 12.4, "e2e": 3}}) + "\n")
        done = self.script("finish", self.records, self.folder)
        rows = [[cell.strip() for cell in line.strip(" |").split("|")] for line in done.stdout.splitlines()
                if line.startswith("  |")]
        for row in (["setup", "7"], ["compile cpu", "60", "100"], ["tests cpu", "9"], ["label e2e", "", "3"],
                    ["label unit", "", "12"], ["all", "76"]):
            self.assertIn(row, [cells[:len(row)] for cells in rows], done.stdout)

    def test_labels_are_read_from_ctest(self):
        status, said = self.run_and_finish("--retry", cpu={"a": ("unit", "sleep 1"), "b": ("e2e;nightly", "exit 0")})
        self.assertEqual(0, status)
        record = json.loads(self.records.read_text().splitlines()[-1])
        self.assertEqual({"unit", "e2e"}, set(record["labels"]))
        self.assertGreaterEqual(record["labels"]["unit"], 1)


if __name__ == "__main__":
    unittest.main()
