#!/usr/bin/env python3
"""Line coverage of a build tree whose tests have run: by folder, and with --files by file.

    python3 tools/coverage.py build/coverage [--files]        (./baton coverage builds, runs, and calls this)

Reads what gcov tells of each object file. A line counts once, however many objects hold it.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("ipc", "configs", "text", "frontend", "scheduler", "workers", "supervisor", "planning")


def lines_of(data):
    """{file: {line: whether it ran}} of one .gcda, files of this tree's programs alone."""
    run = subprocess.run(["gcov", "--json-format", "--stdout", str(data)], capture_output=True, cwd=data.parent,
                         check=False)
    found = collections.defaultdict(dict)
    for text in run.stdout.splitlines():
        report = json.loads(text)
        for file in report["files"]:
            path = pathlib.Path(report["current_working_directory"], file["file"]).resolve()
            if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in FOLDERS:
                continue
            lines = found[path.relative_to(ROOT).as_posix()]
            for line in file["lines"]:
                number = line["line_number"]
                lines[number] = lines.get(number, False) or line["count"] > 0
    return found


def merged(tree):
    total = collections.defaultdict(dict)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for found in pool.map(lines_of, sorted(tree.rglob("*.gcda"))):
            for file, lines in found.items():
                for number, ran in lines.items():
                    total[file][number] = total[file].get(number, False) or ran
    return total


def table(counts):
    for name, (ran, lines) in sorted(counts.items()):
        print(f"{100 * ran / max(lines, 1):5.1f} %  {ran:6} of {lines:6}  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--files", action="store_true")
    args = parser.parse_args()
    files = {file: (sum(lines.values()), len(lines)) for file, lines in merged(args.tree).items()}
    if not files:
        raise SystemExit(f"{args.tree} holds no counts: run its tests first")
    counts = collections.defaultdict(lambda: (0, 0))
    for file, (ran, lines) in files.items():
        for name in (file.rsplit("/", 1)[0] + "/", "all"):
            counts[name] = (counts[name][0] + ran, counts[name][1] + lines)
    if args.files:
        table(files)
        print()
    table(counts)


if __name__ == "__main__":
    main()
