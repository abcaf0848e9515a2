"""JSON Schemas that others published, with what is valid and what is not: counted as MaskBench counts them (open
objects; a schema with a keyword that is not enforced is refused). Skipped where ../shared/schemas is absent.

    python3 tests/published/test_schemas.py        prints the counts
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
JUDGE = pathlib.Path(os.environ.get("BATON_BUILD_DIR", ROOT / "build" / "cpu")) / "tests" / "schema_judge"
SUITES = ROOT.parent / "shared" / "schemas"
NOTHING = "nothing matches the schema"
# Here the suite says that formats are annotations, and optional/format that they are enforced, as they are.
ANNOTATIONS = {"format.json"}


class Judge:
    def __init__(self):
        self.process = subprocess.Popen([str(JUDGE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, kind, value):
        self.process.stdin.write(kind + json.dumps(value, ensure_ascii=False) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def outcome_of(judge, schema, cases, label):
    """passing, refused, validation (a valid text cannot be produced) or invalidation (an invalid one can)."""
    compiled = judge.ask("O", schema)
    if (compiled["error"] and compiled["error"] != NOTHING) or compiled["unenforced"]:
        return "refused"
    found = "passing"
    for valid, data in cases:
        allowed = judge.ask("T", data)["allowed"]
        if allowed and not valid:
            print(f"invalidation: {label}: {json.dumps(data)[:200]}")
            return "invalidation"
        if valid and not allowed:
            print(f"validation: {label}: {json.dumps(data)[:200]}")
            found = "validation"
    return found


def maskbench():
    for line in (SUITES / "maskbench" / "sample.jsonl").read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        entry = json.loads(line)
        yield entry["schema"], [(test["valid"], test["data"]) for test in entry["tests"]], entry["name"]


def official():
    folder = SUITES / "suite" / "tests" / "draft2020-12"
    for path in sorted(folder.rglob("*.json")):
        if str(path.relative_to(folder)) in ANNOTATIONS:
            continue
        for group in json.loads(path.read_text(encoding="utf-8")):
            cases = [(test["valid"], test["data"]) for test in group["tests"]]
            yield group["schema"], cases, f"{path.relative_to(folder)}: {group['description']}"


def count(entries):
    judge = Judge()
    counts = collections.Counter(outcome_of(judge, *entry) for entry in entries)
    judge.close()
    print(dict(counts))
    return counts


@unittest.skipUnless(SUITES.is_dir(), f"{SUITES} is not there")
class Published(unittest.TestCase):
    def test_maskbench(self):
        counts = count(maskbench())
        total = sum(counts.values())
        self.assertEqual(counts["invalidation"], 0)
        self.assertLessEqual(counts["validation"], 0.005 * total)
        self.assertGreaterEqual(counts["passing"], 0.92 * total)

    def test_official_suite(self):
        counts = count(official())
        self.assertEqual(counts["invalidation"], 0)
        self.assertGreaterEqual(counts["passing"], 0.8 * sum(counts.values()))


if __name__ == "__main__":
    if not SUITES.is_dir():
        print(f"skipped: {SUITES} is not there", file=sys.stderr)
        sys.exit(77)
    unittest.main()
