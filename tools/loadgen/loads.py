"""Loads by name, as requests of a trace. Pure: a name and a seed in, JSON-able requests out.

    2048/256@8               prompts of 2,048 tokens, replies of 256, Poisson arrivals at 8 a second
    mix@16                   lognormal lengths (below), Poisson arrivals at 16 a second
    32x100/8192              32 requests at once
    256x100..1024/100..1024  256 at once, lengths uniform between the two
    FILE.jsonl               a trace: timestamp, input_length, output_length, hash_ids
"""

import json
import math
import pathlib
import random
import re

# (median, sigma of the logarithm, shortest, longest), in tokens.
MIX_INPUT = (1500, 1.0, 64, 8000)
MIX_OUTPUT = (250, 0.7, 16, 1000)
MAX_REQUESTS = 1_000_000
MAX_TOKENS = 1 << 20
_RANGE = r"(\d{1,7})(?:\.\.(\d{1,7}))?"
_OPEN = re.compile(rf"(?:(mix)|{_RANGE}/{_RANGE})@(\d{{1,6}}(?:\.\d+)?)")
_BURST = re.compile(rf"(\d{{1,7}})x{_RANGE}/{_RANGE}")


class BadLoad(ValueError):
    """A name that means nothing, or a file that is no trace."""


def lognormal(rng, median, sigma, low, high):
    return min(max(round(rng.lognormvariate(math.log(median), sigma)), low), high)


def poisson_arrivals(rng, rate, seconds):
    """Times in seconds, from the first gap on, below `seconds`."""
    times, at = [], rng.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += rng.expovariate(rate)
    return times


def _between(low, high):
    """A function that draws one length."""
    low = int(low)
    high = low if high is None else int(high)
    if not 1 <= low <= high <= MAX_TOKENS:
        raise BadLoad(f"lengths {low}..{high} must lie between 1 and {MAX_TOKENS}, the smaller first")
    return lambda rng: rng.randint(low, high)


def requests(name, seed, seconds):
    """The requests of the load `name`; `seconds` of arrivals where it has a rate."""
    rng = random.Random(seed)
    if match := _OPEN.fullmatch(name):
        mix, in_low, in_high, out_low, out_high, rate = match.groups()
        rate = float(rate)
        if not 0 < rate * seconds <= MAX_REQUESTS:
            raise BadLoad(f"{name}: a rate above 0 and at most {MAX_REQUESTS} requests")
        if mix:
            draw_input = lambda rng: lognormal(rng, *MIX_INPUT)  # noqa: E731
            draw_output = lambda rng: lognormal(rng, *MIX_OUTPUT)  # noqa: E731
        else:
            draw_input, draw_output = _between(in_low, in_high), _between(out_low, out_high)
        times = poisson_arrivals(rng, rate, seconds)
    elif match := _BURST.fullmatch(name):
        count, *lengths = match.groups()
        if not 1 <= int(count) <= MAX_REQUESTS:
            raise BadLoad(f"{name}: 1 to {MAX_REQUESTS} requests")
        draw_input, draw_output = _between(*lengths[:2]), _between(*lengths[2:])
        times = [0.0] * int(count)
    elif name.endswith(".jsonl"):
        return read(name)
    else:
        raise BadLoad(f"{name!r} is no load: 2048/256@8, mix@16, 32x100/8192, 256x100..1024/100..1024 "
                      "or a FILE.jsonl")
    return [{"timestamp": round(1000 * at, 3), "input_length": draw_input(rng),
             "output_length": draw_output(rng)} for at in times]


def read(path):
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        trace = [json.loads(line) for line in lines if line.strip()]
        if not trace or not all(isinstance(r, dict) and isinstance(r["timestamp"], (int, float)) and
                                isinstance(r["input_length"], int) and isinstance(r["output_length"], int)
                                for r in trace):
            raise BadLoad(f"{path}: not lines of timestamp, input_length, output_length")
    except (OSError, ValueError, KeyError) as error:
        raise BadLoad(f"{path}: {error}") from None
    return trace


def write(path, trace):
    pathlib.Path(path).write_text("".join(json.dumps(r) + "\n" for r in trace), encoding="utf-8")


def arrival_seconds(trace):
    """How long requests arrive: to the last one, at least a second."""
    return max(1.0, trace[-1]["timestamp"] / 1000) if trace else 1.0
