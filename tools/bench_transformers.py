#!/usr/bin/env python3
"""Tokens a second of `transformers` on a model folder: the baseline of docs/performance.md.

Batched greedy generate() in fp32, with the threads and the OpenMP policy that Baton gets. Needs torch and
transformers. Prints a table and one JSON line.

    bench_transformers.py --model demo/model --threads 2 --streams 1 32
"""
import argparse
import json
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch loads OpenMP


def measure(model, torch, streams, prompt, new_tokens, repeats):
    """Best of `repeats` runs: (tokens a second over the whole generate(), decode ms a step)."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, model.config.vocab_size, (streams, prompt), generator=generator)
    options = dict(attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None,
                   pad_token_id=0)
    best = float("inf")
    best_first = float("inf")
    with torch.inference_mode():
        model.generate(ids, max_new_tokens=4, min_new_tokens=4, **options)
        for _ in range(repeats):
            start = time.perf_counter()
            model.generate(ids, max_new_tokens=1, min_new_tokens=1, **options)
            best_first = min(best_first, time.perf_counter() - start)
            start = time.perf_counter()
            out = model.generate(ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, **options)
            best = min(best, time.perf_counter() - start)
            assert out.shape == (streams, prompt + new_tokens)
    return streams * new_tokens / best, 1e3 * (best - best_first) / (new_tokens - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt", type=int, default=32, help="prompt tokens a stream")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens to generate a stream")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.new_tokens < 2:
        parser.error("--new-tokens must be at least 2")
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)

    import torch
    import transformers

    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, "
          f"{arguments.threads} threads, OMP_WAIT_POLICY={os.environ['OMP_WAIT_POLICY']}")
    results = []
    for streams in arguments.streams:
        rate, step = measure(model, torch, streams, arguments.prompt, arguments.new_tokens,
                             arguments.repeats)
        print(f"{streams:4d} streams: {rate:9.0f} tokens/s, {step:8.2f} ms a decode step")
        results.append({"streams": streams, "tokens_per_s": round(rate, 1),
                        "decode_step_ms": round(step, 3)})
    print(json.dumps({"engine": "transformers", "threads": arguments.threads,
                      "prompt": arguments.prompt, "new_tokens": arguments.new_tokens,
                      "results": results}))


if __name__ == "__main__":
    main()
