#!/usr/bin/env python3
"""Our own kernels under compute-sanitizer's racecheck, in parts that each end within half a minute.

    python3 tests/gpu/racecheck.py build/cuda
    python3 tests/gpu/racecheck.py build/cuda --tool synccheck --parts own_linears ring

Needs a GPU and compute-sanitizer. A part is some tests of one program; the sanitizer instruments the kernels whose
name holds the word beside it, all where there is none, and only the first launches (0: all). A part that is cut off reports
what was found until then. The tests call the kernels directly: it seems that where kernels with clusters run beside them without
being instrumented (cuBLAS's, or our own staged_kernel when another one is filtered for), racecheck of version 2025.3
ends with "failed to handle a hardware exception"; so does a whole model. memcheck and synccheck do not. What CTAs of
a cluster hand each other is in no part: racecheck counts threads that arrive at a barrier in the other CTA by themselves,
and linear_chain.cu has one arrive for its warp (with all of them arriving nothing was found).
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

# name: (program, tests, part of the kernels' names, launches that are checked)
PARTS = {
    "own_linears": ("linear_gpu_test", "LinearTest.EveryOwnVariantAgrees", "", 0),
    "chain": ("linear_gpu_test", "LinearChain.ASmallLayer", "", 12),
    "wide_chain": ("linear_gpu_test", "LinearChain.ALayerOfManyRows", "", 0),
    "quantized_chain": ("linear_gpu_test", "LinearChain.RowsOfVeryLargeNumbersEnd", "", 2),
    "tiles": ("quantized_linear_gpu_test", "QuantizedLinearTest.EveryVariantAgrees", "tiles_kernel", 100),
    "ring": ("quantized_linear_gpu_test", "QuantizedLinearTest.EveryVariantAgrees", "ring_kernel", 100),
    "quantized": ("quantized_linear_gpu_test", "QuantizedLinearTest.PartsThatBeginInsideOfATile",
                  "quantized_kernel", 100),
    "experts": ("experts_gpu_test", "ExpertsTest.DeterministicRowsKeepTheirBits", "", 60),
    "ringed_experts": ("experts_gpu_test", "ExpertsTest.CallsFollowEachOther", "", 60),
    "routing": ("experts_gpu_test", "ExpertsRouteTest.RoutingIsTheCpus", "", 30),
    "attention": ("attention_gpu_test", "DecodeAttention.RowsOfAPrompt:DecodeAttention.OtherShapes:"
                  "Shapes/DecodeShapes.AllLengths/2", "", 40),
    "rope_attention": ("attention_gpu_test", "Shapes/RopeShapes.DoesWhatRopeAppendDoes/6", "", 40),
    "sampler": ("sampler_gpu_test", "SamplerTest.RowsWithoutATokenAndPadding", "", 20),
    "edits": ("sampler_gpu_test", "SamplerEditsTest.RowsWithoutASoftmax", "", 20),
    "rowwise": ("rowwise_gpu_test", "RowwiseTest.*-*Bench", "", 120),
}


def run(build, name, args):
    program, tests, kernels, launches = PARTS[name]
    sanitizer = [args.sanitizer, "--tool", args.tool, "--print-limit", "20", "--launch-count", str(launches)]
    if args.tool == "racecheck":
        sanitizer += ["--racecheck-report", "analysis"]
    if kernels:
        sanitizer += ["--kernel-name", f"kns={kernels}"]
    began = time.monotonic()
    process = subprocess.Popen([*sanitizer, str(build / "gpu_tests" / program), f"--gtest_filter={tests}"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", start_new_session=True)
    try:
        text, _ = process.communicate(timeout=args.limit)
        ended = f"exit {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        ended = "cut off"
    return name, text, ended, time.monotonic() - began


def judge(tool, text, ended):
    """(what to say, whether that is good). A part that was cut off is good if nothing was found."""
    if f"{tool.upper()} SUMMARY" not in text and "ERROR SUMMARY" not in text and ended != "cut off":
        return "the sanitizer did not run", False
    found = len(re.findall(r"^=+ (?:Error|Warning|Internal|Barrier error)", text, re.M))
    found = max([found, *map(int, re.findall(r"ERROR SUMMARY: (\d+)", text))])
    passed = len(re.findall(r"^\[ +OK \]", text, re.M))
    said = f"{found} found, {ended}" + (f", {passed} tests passed" if passed else "")
    return said, found == 0 and ended in ("exit 0", "cut off")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--tool", choices=("racecheck", "synccheck", "memcheck"), default="racecheck")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--jobs", type=int, default=5, help="parts at a time (5)")
    parser.add_argument("--limit", type=float, default=28, help="seconds of a part (28)")
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("--out", type=pathlib.Path, help="folder for what the parts said")
    args = parser.parse_args()
    args.build = args.build.resolve()
    good = True
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in concurrent.futures.as_completed(pool.submit(run, args.build, n, args) for n in args.parts):
            name, text, ended, seconds = done.result()
            said, fine = judge(args.tool, text, ended)
            good &= fine
            print(f"{args.tool} {name:20} {seconds:5.1f} s  {said}{'' if fine else '  WRONG'}", flush=True)
            if args.out:
                (args.out / f"{args.tool}-{name}.log").write_text(text)
            elif not fine:
                print("\n".join(text.splitlines()[-60:]), flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
