"""Runs the tests of a build tree for `./baton test`, retries what fails, and prints the summary.

    python3 tests/run_tests.py run RECORDS TREE [--retry] [ctest options]   run one tree's tests
    python3 tests/run_tests.py note RECORDS FIELD=VALUE ...                 append one record
    python3 tests/run_tests.py finish RECORDS BUILD                         print the table and the totals

RECORDS is a file of JSON lines: {"phase", "seconds"} for each phase, {"check", "passed"} for each check that is
no test, and one record with "tree" for each tree's tests. With --retry, a failed test runs once more, alone; if it
passes then, it counts as passed and the summary names it as flaky. The last line is "N passed, N failed"; the exit
status is not 0 if anything failed.
"""

import json
import pathlib
import re
import subprocess
import sys
import time

# More failures than this are no flakiness, and retrying them would cost hours.
MOST_RETRIES = 10
# Labels that a test has beside the one of its kind.
SECOND_LABELS = {"sanitized", "nightly"}
FAILURE = re.compile(r"\*\*\*|^(FAIL|ERROR): |^[A-Za-z.]*(Error|Exception)\b|: Failure$|^\[  FAILED  \]"
                     r"|ThreadSanitizer:|: runtime error:")
MOST_FAILURE_LINES = 60


def append(records, record):
    with open(records, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read(records):
    return [json.loads(line) for line in pathlib.Path(records).read_text(encoding="utf-8").splitlines()]


def ctest(tree, options, log):
    """Runs ctest, shows and keeps what it prints, and returns it as lines."""
    lines = []
    with subprocess.Popen(["ctest", "--test-dir", str(tree), "--output-on-failure", "--no-tests=error", *options],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            log.write(line)
            lines.append(line.rstrip("\n"))
    return lines


def counts(lines):
    """(all, failed names) of a run, or None if ctest ended without its summary."""
    for line in lines:
        total = re.match(r"\d+% tests passed, \d+ tests? failed out of (\d+)$", line)
        if total:
            break
    else:
        return None
    failed = []
    if "The following tests FAILED:" in lines:
        for line in lines[lines.index("The following tests FAILED:") + 1:]:
            name = re.match(r"\s*\d+ - (\S+) \(", line)
            if name:
                failed.append(name.group(1))
    return int(total.group(1)), failed


def label_seconds(lines):
    found = {}
    for line in lines:
        label = re.match(r"(\S+)\s*=\s*([\d.]+) sec\*proc", line)
        if label and label.group(1) not in SECOND_LABELS:
            found[label.group(1)] = float(label.group(2))
    return found


def run(records, tree, options):
    retry = "--retry" in options
    options = [option for option in options if option != "--retry"]
    tree = pathlib.Path(tree)
    with open(tree / "ctest.log", "w", encoding="utf-8") as log:
        lines = ctest(tree, ["-j", "2", *options], log)
        result = counts(lines)
        if result is None:
            append(records, {"tree": tree.name, "passed": 0, "failed": ["ctest"], "flaky": [], "labels": {},
                             "failures": lines[-5:]})
            return
        total, failed = result
        flaky = []
        if retry and len(failed) <= MOST_RETRIES:
            for name in failed:
                print(f"  {name} failed: once more, alone", flush=True)
                again = counts(ctest(tree, ["-R", f"^{re.escape(name)}$"], log))
                if again is not None and again[0] > 0 and not again[1]:
                    flaky.append(name)
        elif retry and failed:
            print(f"  {len(failed)} tests failed: none is retried, the limit is {MOST_RETRIES}", flush=True)
    failed = [name for name in failed if name not in flaky]
    append(records, {"tree": tree.name, "passed": total - len(failed), "failed": failed, "flaky": flaky,
                     "labels": label_seconds(lines),
                     "failures": [line for line in lines if FAILURE.search(line)][:MOST_FAILURE_LINES]})


def note(records, fields):
    """Values are JSON where they can be read as such, else text."""
    record = {}
    for field in fields:
        key, _, value = field.partition("=")
        try:
            record[key] = json.loads(value)
        except ValueError:
            record[key] = value
    append(records, record)


def compile_seconds(tree, since):
    """The time of all compilers and linkers of a tree since then, added up; None if none ran."""
    spent = {}
    try:
        lines = (tree / ".ninja_log").read_text().splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        fields = line.split("\t")
        if len(fields) == 5 and int(fields[2]) >= since * 1e9:
            # The outputs of one edge share its times.
            spent[fields[0], fields[1], fields[4]] = (int(fields[1]) - int(fields[0])) / 1000
    return sum(spent.values()) if spent else None


def table(found, build):
    """Rows (phase, seconds of the clock, seconds of processes added up)."""
    phases = [record for record in found if "phase" in record]
    since = next((record["began"] for record in found if "began" in record), time.time())
    tests = {record["tree"]: record for record in found if "tree" in record}
    rows = []
    for record in phases:
        kind, _, tree = record["phase"].partition(" ")
        work = compile_seconds(build / tree, since) if kind == "compile" else None
        rows.append((record["phase"], record["seconds"], work))
        if kind == "tests" and tree in tests:
            rows += [(f"  label {label}", None, spent) for label, spent in sorted(tests[tree]["labels"].items())]
    rows.append(("all", sum(record["seconds"] for record in phases), None))
    return rows


def print_table(rows):
    print("where the time went (clock: waited for; work: seconds of compilers or tests added up, also of what ran"
          " beside tests):")
    print(f"  | {'phase':<18} | clock s | work s |\n  |{'-' * 20}|{'-' * 9}|{'-' * 8}|")
    for name, clock, work in rows:
        clock, work = ("" if seconds is None else round(seconds) for seconds in (clock, work))
        print(f"  | {name:<18} | {clock:>7} | {work:>6} |")


def finish(records, build):
    found = read(records)
    tests = [record for record in found if "tree" in record]
    checks = [record for record in found if "check" in record]
    passed = sum(record["passed"] for record in tests) + sum(bool(record["passed"]) for record in checks)
    failed = sum(len(record["failed"]) for record in tests) + sum(not record["passed"] for record in checks)
    if any("phase" in record for record in found):
        print_table(table(found, pathlib.Path(build)))
    if failed:
        # Once more in short, since they may lie thousands of lines above.
        print("what failed:")
        for line in [line for record in tests if record["failed"] for line in record["failures"]][:MOST_FAILURE_LINES]:
            print(line)
        for record in tests:
            for name in record["failed"]:
                print(f"failed: {name}{'' if record['tree'] == 'cpu' else ' in ' + record['tree']}")
        for record in checks:
            if not record["passed"]:
                print(f"failed: {record['check']}")
    for record in tests:
        for name in record["flaky"]:
            print(f"flaky: {name}{'' if record['tree'] == 'cpu' else ' in ' + record['tree']}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main(arguments):
    if len(arguments) >= 3 and arguments[0] == "run":
        run(arguments[1], arguments[2], arguments[3:])
        return 0
    if len(arguments) >= 3 and arguments[0] == "note":
        note(arguments[1], arguments[2:])
        return 0
    if len(arguments) == 3 and arguments[0] == "finish":
        return finish(arguments[1], arguments[2])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
