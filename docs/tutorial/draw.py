#!/usr/bin/env python3
"""Draws the tutorial's figures, docs/tutorial/*.svg, from docs/tutorial/data/*.json (record.py). Standard library
only; the same data give the same bytes. Another folder for the figures may be named."""

import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
BLUE, RED, GREEN, GREY, INK = "#2b6cb0", "#c05621", "#2f855a", "#a0aec0", "#1a202c"


class Svg:
    def __init__(self, width, height):
        self.size = width, height
        self.parts = []

    def line(self, x1, y1, x2, y2, color=INK, width=1.0, dash=""):
        dash = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
                          f'stroke-width="{width}"{dash}/>')

    def rect(self, x, y, width, height, color):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.6):.1f}" height="{height:.1f}" '
                          f'fill="{color}"/>')

    def dot(self, x, y, color, radius=3):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"/>')

    def path(self, points, color):
        words = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{words}" fill="none" stroke="{color}" stroke-width="1.8"/>')

    def text(self, x, y, words, size=12, anchor="start", color=INK):
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
                          f'fill="{color}">{words}</text>')

    def save(self, name):
        width, height = self.size
        body = "\n".join(self.parts)
        (OUT / name).write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n{body}\n</svg>\n', encoding="utf-8")


class Axes:
    """A frame with ticks; `x` and `y` turn values into places. Logarithmic where asked for."""

    def __init__(self, svg, box, x_range, y_range, x_ticks, y_ticks, labels, logs=(False, False)):
        self.svg, (self.left, self.top, self.right, self.bottom) = svg, box
        self.ranges, self.logs = (x_range, y_range), logs
        svg.line(self.left, self.bottom, self.right, self.bottom)
        svg.line(self.left, self.top, self.left, self.bottom)
        for tick in x_ticks:
            svg.line(self.x(tick), self.bottom, self.x(tick), self.bottom + 4)
            svg.text(self.x(tick), self.bottom + 17, f"{tick:g}", 11, "middle")
        for tick in y_ticks:
            svg.line(self.left, self.y(tick), self.right, self.y(tick), "#e2e8f0")
            svg.text(self.left - 6, self.y(tick) + 4, f"{tick:g}", 11, "end")
        svg.text((self.left + self.right) / 2, self.bottom + 34, labels[0], 12, "middle")
        svg.text(self.left, self.top - 8, labels[1], 12)

    def _share(self, value, which):
        low, high = self.ranges[which]
        if self.logs[which]:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        return (value - low) / (high - low)

    def x(self, value):
        return self.left + self._share(value, 0) * (self.right - self.left)

    def y(self, value):
        return self.bottom - self._share(value, 1) * (self.bottom - self.top)

    def curve(self, points, color, dots=True):
        places = [(self.x(x), self.y(y)) for x, y in points]
        self.svg.path(places, color)
        for place in places if dots else ():
            self.svg.dot(*place, color)

    def key(self, place, entries):
        x, y = place
        for i, (color, words) in enumerate(entries):
            self.svg.line(x, y + 18 * i - 4, x + 18, y + 18 * i - 4, color, 3)
            self.svg.text(x + 24, y + 18 * i, words)


def load(name):
    return json.loads((HERE / "data" / f"{name}.json").read_text(encoding="utf-8"))


def timeline():
    """One request through the pair: its chunks, its pulls, its tokens."""
    data = load("timeline")
    svg = Svg(900, 300)
    end = math.ceil(data["client"][-1] / 50) * 50
    axes = Axes(svg, (110, 30, 880, 240), (0, end), (0, 4), range(0, end + 1, 50), [],
                ("milliseconds since the client sent the request", ""))
    lanes = {"prefill0": 3, "pulls": 2, "decode0": 1, "client": 0}
    for name, lane in lanes.items():
        svg.text(100, axes.y(lane + 0.45), name, 12, "end")
    for name, color in (("prefill0", BLUE), ("decode0", GREEN)):
        for start, stop, _, tokens in data["steps"][name]:
            x = axes.x(max(start, 0))
            svg.rect(x, axes.y(lanes[name] + 0.8), axes.x(stop) - x - 0.4, 30, color)
            if name == "prefill0":
                svg.text((x + axes.x(stop)) / 2, axes.y(lanes[name] + 0.4), str(tokens), 11, "middle", "white")
    for start, stop, blocks in data["pulls"]:
        svg.rect(axes.x(start), axes.y(lanes["pulls"] + 0.8), axes.x(stop) - axes.x(start), 30, RED)
        svg.text(axes.x(start) - 2, axes.y(lanes["pulls"] + 0.4), str(blocks), 11, "end", RED)
    for at in data["client"]:
        svg.line(axes.x(at), axes.y(0.1), axes.x(at), axes.y(0.8), INK, 1.2)
    svg.text(110, 18, "prompt tokens of each step (blue), blocks of each pull (red), decode steps (green), "
             "tokens at the client's socket (black)")
    svg.save("timeline.svg")


def rows():
    """Time of a step against its rows: a model in cache that computes, and one in memory that reads."""
    svg = Svg(900, 330)
    cpu, gpu = load("rows"), load("h200_steps")
    for box, points, y_range, ticks, title in (
            ((70, 40, 420, 270), [(r["rows"], r["step_ms"]) for r in cpu], (0.1, 100), (0.1, 1, 10, 100),
             "demo model, one CPU thread: ms a step"),
            ((520, 40, 870, 270), [(r["rows"], r["step_ms"]) for r in gpu["steps"]], (1, 100), (1, 10, 100),
             "8B on one H200, 512 tokens of context: ms a step")):
        most = points[-1][0]
        axes = Axes(svg, box, (1, most), y_range, [n for n, _ in points], ticks,
                    ("rows: sequences that decode together", title), (True, True))
        axes.curve(points, BLUE)
        one, top = points[0][1], min(most, y_range[1] / points[0][1])
        axes.curve([(1, one), (top, one * top)], GREY, False)
        axes.key((box[0] + 14, box[1] + 16), [(BLUE, "measured"), (GREY, "one row's time times the rows")])
    svg.save("rows.svg")


def rates():
    """Open loop: latency and what of it meets the objectives, against the rate."""
    data = load("rates")
    svg = Svg(900, 330)
    most = data[-1]["rate"]
    ticks = [r["rate"] for r in data]
    axes = Axes(svg, (70, 40, 420, 270), (0, most), (10, 100_000), ticks, (10, 100, 1000, 10_000, 100_000),
                ("requests a second that arrive", "time to first token, ms"), (False, True))
    axes.curve([(r["rate"], r["ttft_ms"]["p50"]) for r in data], BLUE)
    axes.curve([(r["rate"], r["ttft_ms"]["p99"]) for r in data], RED)
    axes.key((84, 56), [(BLUE, "p50"), (RED, "p99")])
    axes = Axes(svg, (520, 40, 870, 270), (0, most), (0, most), ticks, ticks,
                ("requests a second that arrive", "requests a second"), (False, False))
    axes.curve([(0, 0), (most, most)], GREY, False)
    axes.curve([(r["rate"], r["goodput_per_s"]) for r in data], GREEN)
    axes.key((534, 56), [(GREY, "arrive"), (GREEN, "meet both objectives (goodput)")])
    svg.save("rates.svg")


def gaps():
    """How many of the gaps between tokens are longer than so many milliseconds."""
    data = load("gaps")
    svg = Svg(900, 360)
    longest = max(q for run in data for _, q in run["quantiles"])
    end = 1000 if longest > 300 else 300
    axes = Axes(svg, (70, 40, 870, 300), (1, end), (0.001, 1), [t for t in (1, 3, 10, 30, 100, 300, 1000) if t <= end],
                (0.001, 0.01, 0.1, 1), ("gap between two tokens of a running stream, ms", "share of gaps that are longer"),
                (True, True))
    colors = (GREEN, BLUE, RED)
    for run, color in zip(data, colors):
        axes.curve([(q, 1 - p) for p, q in run["quantiles"] if q >= 1], color, False)
    axes.key((430, 60), [(color, f"{run['label']}: first token of a prompt after {run['ttft_p50_ms']:.0f} ms (median)")
                         for run, color in zip(data, colors)])
    svg.save("gaps.svg")


if __name__ == "__main__":
    for draw in (timeline, rows, rates, gaps):
        draw()
