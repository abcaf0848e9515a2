#!/usr/bin/env python3
"""Baton beside llama.cpp's server on CPUs: the same weights, the same prompts of token ids, in turns.

    tools/random_model.py 0.6b FOLDER
    tools/bench_llama_cpp.py FOLDER/bf16.gguf [FOLDER/q8_0.gguf ...] --llama-source llama.cpp [--baton FOLDER/gptq]
        [--threads 2] [--streams 1 16] [--prompt 512] [--tokens 64] [--rounds 3] [--activations exact]

--llama-source is a clone of llama.cpp. Its server is built there for this very processor (-DGGML_NATIVE=ON, in build-native):
a package compiled for AVX2 would make Baton look up to four times better on a machine with AVX-512. --llama-server names a server
that you have built so. What its log says about the processor is printed. Each round starts one server, measures, stops it, and
starts the other one. Both get prompts of their own for every stream and round,
so that no prefix is found; greedy, to the full length. Printed of each: tokens a second of the prompt (from the request to the
first token, one stream), and tokens a second of all streams together while all of them decode; in the middle of the rounds.
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TOOLS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS.parent / "tests" / "e2e"))
from cluster import MIXED, Cluster, free_port  # noqa: E402


def build_native(source):
    """llama.cpp's server of a source folder, compiled for this processor."""
    if not (source / "CMakeLists.txt").is_file():
        raise SystemExit(f"--llama-source: {source} has no CMakeLists.txt; name a clone of llama.cpp")
    tree = source / "build-native"
    jobs = str(os.cpu_count())
    for command in (["cmake", "-S", source, "-B", tree, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
                     "-DLLAMA_BUILD_TESTS=OFF"],
                    ["cmake", "--build", tree, "--target", "llama-server", "-j", jobs]):
        subprocess.run(command, check=True, stdout=sys.stderr)
    return tree / "bin" / "llama-server"


def processor_features(log):
    """What llama.cpp's server says that it was compiled for: ["AVX2", "AVX512", ...]."""
    for line in log.splitlines():
        if "system_info" in line:
            return [name.split(":")[-1].strip() for name, _, value in (part.partition("=") for part in line.split("|"))
                    if value.strip() == "1"]
    return []


def stream(port, path, body, arrivals):
    """Sends one request and notes when each token comes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {response.read()[:500]}")
    for line in response:
        if line.startswith(b"data:") and b"[DONE]" not in line:
            event = json.loads(line[5:])
            choices = event.get("choices") or [{}]
            if choices[0].get("text") or event.get("content"):
                arrivals.append(time.monotonic())
    connection.close()


def measure(port, path, body_of, streams, tokens, prompt):
    """(tokens a second of the prompt, of all streams while they decode)"""
    arrivals = [[] for _ in range(streams)]
    threads = [threading.Thread(target=stream, args=(port, path, body_of(tokens), arrivals[i])) for i in range(streams)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Between the last stream's first token and the first stream's last one all of them decode.
    start, end = max(a[0] for a in arrivals), min(a[-1] for a in arrivals)
    decoded = sum(1 for a in arrivals for at in a if start < at <= end)
    return prompt / (arrivals[0][0] - begin), decoded / (end - start) if end > start else float("nan")


@contextlib.contextmanager
def llama(args, model, streams):
    port = free_port()
    context = args.prompt + args.tokens + 64
    command = [args.llama_server, "-m", model, "--port", port, "-t", args.threads, "-tb", args.threads,
               "-np", streams, "-c", streams * context]
    log = tempfile.NamedTemporaryFile(prefix="llama-", suffix=".log")
    process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            if process.poll() is not None:
                raise RuntimeError("llama.cpp's server has ended")
            time.sleep(0.1)
        if not args.features:
            args.features = processor_features(pathlib.Path(log.name).read_text(errors="replace"))
            print("llama.cpp is compiled for " + (", ".join(args.features) or "what its log does not say"), flush=True)
        yield port
    finally:
        process.kill()
        process.wait()
        log.close()


@contextlib.contextmanager
def baton(args, model, streams):
    with Cluster(MIXED, model=model, worker={"threads": args.threads, "pool_mib": args.pool_mib,
                                                 "activations": args.activations}) as cluster:
        yield next(iter(cluster.frontends.values()))


def parts(model):
    """What Baton serves, and what llama.cpp does."""
    theirs, _, ours = model.partition("=")
    return os.path.abspath(ours or theirs), os.path.abspath(theirs)


def bodies(args, draw):
    def prompt():
        return [draw.randrange(300, 100000) for _ in range(args.prompt)]

    def ours(tokens):
        return {"prompt": prompt(), "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}

    def theirs(tokens):
        return {"prompt": prompt(), "n_predict": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "cache_prompt": False}
    return ours, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("models", nargs="+", help="GGUF files that both serve; FILE=FOLDER: Baton serves FOLDER")
    add("--baton", nargs="*", default=[], help="folders or files that Baton alone serves")
    peer = parser.add_mutually_exclusive_group(required=True)
    peer.add_argument("--llama-source", type=pathlib.Path, help="a clone of llama.cpp: its server is built natively there")
    peer.add_argument("--llama-server", type=pathlib.Path, help="a server that was built with -DGGML_NATIVE=ON")
    add("--threads", type=int, default=2)
    add("--streams", type=int, nargs="+", default=[1, 16])
    add("--prompt", type=int, default=512)
    add("--tokens", type=int, default=64)
    add("--rounds", type=int, default=3)
    add("--pool-mib", type=int, default=2600, help="Baton's KV pool")
    add("--activations", default="auto", help="auto, exact or int8: worker.activations")
    add("--json", help="writes all numbers there")
    args = parser.parse_args()
    args.features = None
    if args.llama_source:
        args.llama_server = build_native(args.llama_source.resolve())
    draw = random.Random(6)
    ours, theirs = bodies(args, draw)
    found = {}
    for turn in range(args.rounds):
        for model in [*args.models, *args.baton]:
            for streams in args.streams:
                for name, serve, path, body in (("baton", baton, "/v1/completions", ours),
                                                ("llama.cpp", llama, "/completion", theirs)):
                    if name == "llama.cpp" and model in args.baton:
                        continue
                    with serve(args, parts(model)[name == "llama.cpp"], streams) as port:
                        measure(port, path, body, 1, 8, args.prompt)  # warms it up
                        numbers = measure(port, path, body, streams, args.tokens, args.prompt)
                    found.setdefault((model, streams, name), []).append(numbers)
                    print(f"round {turn} {model} {streams} streams {name}: prompt {numbers[0]:.1f}, decode {numbers[1]:.2f} a second, "
                          f"load {os.getloadavg()[0]:.1f}", flush=True)
    middle = {key: [statistics.median(column) for column in zip(*values)] for key, values in found.items()}
    for (model, streams, name), (prompt, decode) in middle.items():
        print(f"{pathlib.Path(model).name:12} {streams:3} streams  {name:10} prompt {prompt:8.1f}  decode {decode:8.2f}")
        other = middle.get((model, streams, "llama.cpp"))
        if name == "baton" and other:
            print(f"{'':12} {'':3}          over llama.cpp: prompt {prompt / other[0]:.2f}, decode {decode / other[1]:.2f}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps([[*key, values] for key, values in found.items()], indent=1))


if __name__ == "__main__":
    main()
