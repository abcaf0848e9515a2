"""When requests arrive and how long their replies are. Pure: a seeded random.Random in, numbers out."""

import math

_CHUNK = 500.0  # exp(-500) is still a normal double


def poisson(rng, mean):
    """One Poisson draw by Knuth's product of uniforms, the mean taken in parts so that exp() cannot
    underflow (a sum of Poisson draws is one of the summed mean)."""
    count = 0
    while mean > 0:
        part = min(mean, _CHUNK)
        mean -= part
        limit, product = math.exp(-part), rng.random()
        while product > limit:
            count += 1
            product *= rng.random()
    return count


def contest_gap_s(rng, qps):
    """The contest's gap between two requests: Poisson around the mean gap in whole milliseconds, which
    makes it nearly constant (the deviation is the root of the mean: 22 ms at 500)."""
    return poisson(rng, round(1 / qps, 2) * 1000) / 1000


def response_lengths(rng, distribution, mean, spread, count):
    """`count` lengths in tokens. uniform: mean +- spread/2; exponential: cut down to `spread`;
    capped_exponential: drawn again while above `spread`. Never below 1, which servers refuse."""
    if distribution == "uniform":
        half = spread // 2
        return [max(1, rng.randint(mean - half, mean + half)) for _ in range(count)]
    if distribution == "exponential":
        return [max(1, min(round(rng.expovariate(1 / mean)), spread)) for _ in range(count)]
    if distribution != "capped_exponential":
        raise ValueError(f"unknown distribution {distribution!r}")
    lengths = []
    while len(lengths) < count:
        length = round(rng.expovariate(1 / mean))
        if length <= spread:
            lengths.append(max(1, length))
    return lengths
