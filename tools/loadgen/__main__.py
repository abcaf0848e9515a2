"""tools/loadgen MODE [options]: python3 tools/loadgen performance -X 2 -P 8835 -O ./ -T 750"""

import importlib
import pathlib
import sys

if not __package__:  # run as a folder: make the package importable by its name
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

MODES = {
    "performance": ("serving", "the contest's test_serving_performance.py: speed, and --task 2 precision"),
    "load_test": ("tutorial", "the tutorial's load_test.py"),
    "lab": ("lab", "the prefill/decode lab's test"),
    "precision": ("precision", "keeps log probabilities of greedy replies, N requests at a time"),
    "acc_allclose": ("compare", "compares two folders of .npy files"),
    "prefix_replay": ("prefix_replay", "hit rate of the prefix cache on a trace, offline and measured"),
    "poisson": ("open_loop", "open-loop arrivals of streamed chats (by baton-bench-client)"),
    "replay": ("replay", "open-loop load or a trace, judged by objectives (by baton-bench-client)"),
    "trace": ("trace", "writes a generated trace of conversations"),
}


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode not in MODES:
        print("Usage: ./baton loadgen MODE [options]   (MODE --help shows them)\n", file=sys.stderr)
        for name, (_, what) in MODES.items():
            print(f"  {name:14} {what}", file=sys.stderr)
        return 2
    return importlib.import_module("loadgen." + MODES[mode][0]).main(sys.argv[2:])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
