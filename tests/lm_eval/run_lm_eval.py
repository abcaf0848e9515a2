#!/usr/bin/env python3
"""lm-eval against a front end: log-likelihoods of the demo model as transformers gives them.

    python3 -m venv /tmp/lm-eval
    /tmp/lm-eval/bin/pip install 'lm-eval[api]==0.4.13' transformers==5.23.0 sentencepiece protobuf
    /tmp/lm-eval/bin/python tests/lm_eval/run_lm_eval.py

By hand, not in CI: lm-eval brings some seventy packages. What it asks of the API (echo with logprobs) is in
tests/e2e/test_api.py as well. It exits with 0 when every log-likelihood is within 1e-4.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from cluster import DEMO_MODEL, Cluster  # noqa: E402

TOLERANCE = 1e-4


def main():
    with Cluster() as cluster, tempfile.TemporaryDirectory() as out:
        port = next(iter(cluster.frontends.values()))
        model = {"model": "demo", "base_url": f"http://127.0.0.1:{port}/v1/completions",
                 "tokenizer": str(DEMO_MODEL), "tokenized_requests": "True", "num_concurrent": "2",
                 "max_length": "2048", "add_bos_token": "True"}
        subprocess.run(
            [sys.executable, "-m", "lm_eval", "--model", "local-completions",
             "--model_args", ",".join(f"{key}={value}" for key, value in model.items()),
             "--include_path", str(ROOT / "tests" / "lm_eval"), "--tasks", "baton_demo",
             "--batch_size", "4", "--log_samples", "--output_path", out],
            check=True, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        samples = [json.loads(line) for path in pathlib.Path(out).rglob("samples_*.jsonl")
                   for line in path.read_text().splitlines()]
    worst = 0.0
    for sample in samples:
        told, greedy = sample["resps"][0][0]
        wanted = sample["doc"]["loglikelihood"]
        worst = max(worst, abs(float(told) - wanted))
        print(f"{float(told):12.6f} {wanted:12.6f}  {sample['doc']['target']!r}")
        if str(greedy) != str(sample["doc"]["greedy"]):
            raise SystemExit(f"greedy is {greedy}")
    print(f"{len(samples)} documents, largest difference {worst:.2e}")
    if not samples or worst > TOLERANCE:
        raise SystemExit(1)


main()
