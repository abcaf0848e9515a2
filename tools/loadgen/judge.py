"""What a run was worth: quantiles, tokens a second, service-level objectives. Pure: records of
baton-bench-client's --log in, figures out.

A record has `at` (ms since the start, when the request was due), `sent` (ms later, when it left), `events`
(ms after `at` of each event with text), `tokens`, `error`, and `output`, the tokens asked for.
"""

import json
import pathlib

from loadgen import quantiles

# Both bounds of an objective in ms. i: time to first token, and the p99 of the request's own gaps;
# ii: time to first token, and the mean time of the tokens after it.
SLO_I = {"ttft": 1000, "gap_p99": 30}
SLO_II = {"ttft": 500, "tpot": 15}


def _quantile(values, p):
    return quantiles.quantile(sorted(values), p) if values else None


def read_log(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]


def figures(record):
    """One request's own, or None if it failed. Events that arrive together have gaps of 0."""
    events, tokens = record["events"], record["tokens"]
    if record["error"] or not events or tokens != record.get("output", tokens):
        return None
    gaps = [b - a for a, b in zip(events, events[1:])]
    return {"ttft": events[0], "gaps": gaps, "gap_p99": _quantile(gaps, .99) or 0.0,
            "tpot": (events[-1] - events[0]) / (tokens - 1) if tokens > 1 else 0.0}


def meets(own, objective):
    return own is not None and all(own[key] <= bound for key, bound in objective.items())


def report(records, expected, arrival_s):
    """`expected` requests were to be sent within `arrival_s`. Requests that failed, or that no record
    tells of, meet no objective. Goodput is requests that meet both, a second of arrivals."""
    own = [figures(record) for record in records]
    good = [f for f in own if f is not None]
    gaps = [gap for f in good for gap in f["gaps"]]
    ends = [record["at"] + record["events"][-1] for record in records if record["events"]]
    seconds = max(ends, default=0) / 1000
    tokens = sum(record["tokens"] for record, f in zip(records, own) if f is not None)
    both = sum(meets(f, SLO_I) and meets(f, SLO_II) for f in own)
    first_error = next((r["error"] or f"{r['tokens']} tokens of {r.get('output')}"
                        for r, f in zip(records, own) if f is None), None)

    def spread(values, *points):
        return {f"p{round(100 * p)}": _quantile(values, p) for p in points}

    return {"requests": expected, "completed": len(good), "errors": expected - len(good),
            "first_error": first_error and first_error[:300], "seconds": seconds,
            "ttft_ms": spread([f["ttft"] for f in good], .5, .9, .99),
            "itl_ms": spread(gaps, .5, .99), "tpot_ms": spread([f["tpot"] for f in good], .5, .99),
            "output_tokens_per_s": tokens / seconds if seconds else 0.0,
            "slo_i": sum(meets(f, SLO_I) for f in own) / expected if expected else 0.0,
            "slo_ii": sum(meets(f, SLO_II) for f in own) / expected if expected else 0.0,
            "goodput_per_s": both / arrival_s,
            "client_late_ms_p99": _quantile([r["sent"] for r in records], .99)}


def steps(lines):
    """Of a worker's step log ("end rows tokens idle run" a line): how much of the time its device was idle
    between steps. Only steps of at least half the most rows count: where all streams were there."""
    rows = [[float(word) for word in line.split()] for line in lines]
    rows = [r for r in rows if len(r) == 5]
    most = max((r[1] for r in rows), default=0)
    full = [r for r in rows if r[1] >= most / 2 and r[1] == r[2]]
    idle, run = [r[3] for r in full], [r[4] for r in full]
    if not full:
        return {"steps": 0}
    return {"steps": len(full), "rows": most, "run_p50_us": _quantile(run, .5),
            "idle_p50_us": _quantile(idle, .5), "idle_p99_us": _quantile(idle, .99),
            "idle_share": sum(idle) / (sum(idle) + sum(run))}


_COLUMNS = (("set-up", 10), ("load", 26), ("done", 6), ("err", 4), ("TTFT p50", 9), ("p99", 8),
            ("ITL p50", 8), ("p99", 7), ("tok/s", 7), ("SLO i", 6), ("ii", 6), ("goodput/s", 9))


def _line(cells):
    return "  ".join(f"{cell:<{width}}" if i < 2 else f"{cell:>{width}}"
                     for i, (cell, (_, width)) in enumerate(zip(cells, _COLUMNS))).rstrip()


def table(results):
    """Text for people; each of `results` is a report with `setup` and `load`."""
    def ms(value):
        return "-" if value is None else f"{value:.1f}"

    lines = [_line([name for name, _ in _COLUMNS])]
    for r in results:
        lines.append(_line([
            r["setup"], r["load"], str(r["completed"]), str(r["errors"]), ms(r["ttft_ms"]["p50"]),
            ms(r["ttft_ms"]["p99"]), ms(r["itl_ms"]["p50"]), ms(r["itl_ms"]["p99"]),
            f"{r['output_tokens_per_s']:.0f}", f"{100 * r['slo_i']:.0f}%", f"{100 * r['slo_ii']:.0f}%",
            f"{r['goodput_per_s']:.2f}"]))
    return "\n".join(lines)
