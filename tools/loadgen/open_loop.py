"""Open-loop Poisson arrivals of streamed chats, with quantiles of time to first token, time between tokens
and end to end: baton-bench-client does the work, since an interpreter would add its own delays to every
token. This only finds it and gives it the options' usual names.

    tools/loadgen poisson --url http://127.0.0.1:8000 --rate 20 --requests 400 --tokens 64
"""

import argparse
import os
import pathlib
import urllib.parse

ROOT = pathlib.Path(__file__).parents[2]


def command(options):
    url = urllib.parse.urlsplit(options.url if "//" in options.url else "http://" + options.url)
    words = [options.client, "--host", url.hostname or "127.0.0.1", "--port", url.port or 80, "--path", options.path,
             "--rate", options.rate, "--requests", options.requests, "--streams", options.streams,
             "--tokens", options.tokens, "--prompt-words", options.prompt_words, "--seed", options.seed]
    if options.model:
        words += ["--model", options.model]
    if options.json:
        words += ["--json", options.json]
    return [str(word) for word in words]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="loadgen poisson", description="open-loop Poisson arrivals")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--rate", type=float, default=10, help="arrivals a second (10)")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--streams", type=int, default=4096,
                        help="requests open at a time; what comes beyond waits, and its wait counts (4096)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each reply (128)")
    parser.add_argument("--prompt_words", type=int, default=0, help="random words in each prompt")
    parser.add_argument("--model", help="model name to send (none)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also write the figures to this file")
    build = os.environ.get("BATON_BUILD_DIR", ROOT / "build" / "cpu")
    parser.add_argument("--client", type=pathlib.Path,
                        default=pathlib.Path(build) / "bin" / "baton-bench-client")
    options = parser.parse_args(arguments)
    if not options.client.exists():
        parser.error(f"{options.client} is not there: ./baton build baton-bench-client")
    os.execv(options.client, command(options))
