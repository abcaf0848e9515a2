#!/usr/bin/env python3
"""Where the time of a decode step goes, kernel by kernel: reads what libbaton-kernel-times.so wrote.

    CUDA_INJECTION64_PATH=build/cuda/bin/libbaton-kernel-times.so KERNEL_TIMES=/tmp/times \\
        build/cuda/bin/baton-bench-worker --model DIR --device cuda --load-format dummy --max-running 32 --rows 32 --steps 24
    tools/kernel_times.py /tmp/times

A step begins with the embedding. Kernels chained by programmatic dependent launch begin before their predecessor ends,
and their wait counts; the union of all is what the device was busy. What a kernel adds to a layer, from the end of all
before it to its own, is told as well: layers begin with attention, the first and the last of a step are left out.
"""

import argparse
import collections
import re
import struct

RECORD = struct.Struct("<QQII")


def read(path):
    data = open(path, "rb").read()
    (count,) = struct.unpack_from("<Q", data, 0)
    at, names = 8, []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        names.append(data[at + 4:at + 4 + length].decode())
        at += 4 + length
    end = at + (len(data) - at) // RECORD.size * RECORD.size
    return names, sorted(RECORD.iter_unpack(data[at:end]))


def shown(name):
    """A mangled name's longest part that says something."""
    words = re.findall(r"[a-z][a-z_]{4,}", name)
    kernels = [w for w in words if "kernel" in w or "attention" in w]
    return name[:60] if name.startswith("nvjet") or not words else (kernels or words)[0] + "  " + name[-40:]


def print_layers(names, steps, first):
    """Kernels of a layer in their order; steps are lists of records."""
    totals = collections.defaultdict(lambda: [0, 0, 0, 0])  # by place in the layer and name
    for step in steps:
        firsts = [i for i, r in enumerate(step) if first in names[r[2]]]
        for layer, following in zip(firsts[1:-1], firsts[2:]):
            before = max(r[1] for r in step[:layer])
            for place, (start, stop, name, _) in enumerate(step[layer:following]):
                for i, value in enumerate((start - before, stop - start, max(0, stop - before), 1)):
                    totals[place, name][i] += value
                before = max(before, stop)
    if totals:
        print("a layer, us: a kernel begins so long behind the end of those before it, lasts, and adds")
    for (_, name), (begins, lasts, adds, n) in sorted(totals.items()):
        print(f"{begins / n / 1e3:10.2f} {lasts / n / 1e3:9.2f} {adds / n / 1e3:9.2f} {n:6} x  {shown(names[name])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--steps", type=int, default=10, help="the last steps are summed up (10)")
    parser.add_argument("--first", default="embed", help="part of the name of a step's first kernel (embed)")
    parser.add_argument("--layer", default="attention", help="the same of a layer (attention)")
    args = parser.parse_args()
    try:
        names, records = read(args.file)
    except (OSError, struct.error, UnicodeDecodeError) as error:
        parser.exit(1, f"{args.file} was not written by libbaton-kernel-times.so: {error}\n")
    firsts = [i for i, r in enumerate(records) if args.first in names[r[2]]]
    steps = list(zip(firsts, firsts[1:]))[-args.steps:]
    if not steps:
        parser.exit(1, f"no step: no kernel's name has {args.first!r} in it\n")
    total, count, busy = collections.Counter(), collections.Counter(), 0
    wall = sum(records[end][0] - records[begin][0] for begin, end in steps)
    for begin, end in steps:
        until = 0
        for start, stop, name, _ in records[begin:end]:
            total[name] += stop - start
            count[name] += 1
            busy += max(0, stop - max(start, until))
            until = max(until, stop)
    n = len(steps)
    print(f"{n} steps of {wall / n / 1e3:.1f} us; the device was busy for {busy / n / 1e3:.1f} us of each")
    for name, ns in total.most_common():
        print(f"{ns / n / 1e3:10.1f} us {count[name] / n:7.1f} x {ns / count[name] / 1e3:8.2f} us  {shown(names[name])}")
    print_layers(names, [records[begin:end] for begin, end in steps], args.layer)


if __name__ == "__main__":
    main()
