"""Summaries of latencies."""

import math


def quantile(ordered, p):
    """Linear between the neighbours of p * (n - 1), as pandas and numpy do it. `ordered` is sorted."""
    at = p * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def describe(values):
    """The eight figures of pandas' describe(); std is the sample's (n - 1). Without a value NaN, which
    JSON has no word for, is null."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0.0, **dict.fromkeys(("mean", "std", "min", "25%", "50%", "75%", "max"))}
    mean = math.fsum(ordered) / len(ordered)
    std = None
    if len(ordered) > 1:
        std = math.sqrt(math.fsum((v - mean) ** 2 for v in ordered) / (len(ordered) - 1))
    return {"count": float(len(ordered)), "mean": mean, "std": std, "min": ordered[0],
            "25%": quantile(ordered, .25), "50%": quantile(ordered, .5),
            "75%": quantile(ordered, .75), "max": ordered[-1]}


def line(values, unit="s"):
    """One line for people: "p50 0.12 p90 .. p99 .. max .. s"."""
    ordered = sorted(values)
    if not ordered:
        return "none"
    parts = [f"{name} {quantile(ordered, p):.3f}"
             for name, p in (("p50", .5), ("p90", .9), ("p99", .99), ("max", 1))]
    return " ".join(parts) + f" {unit}"
