"""The contest's acc_allclose.py: every file of one folder against its namesake in another.

    tools/acc_allclose.py --base_path file_npy_base --new_path file_npy

|new - base| <= atol + rtol * |base| for every number, as numpy.allclose judges (NaN equals nothing).
Exit code 1 if a file is missing, has another shape or is farther away.
"""

import argparse
import math
import pathlib

from loadgen import npy


def difference(base, new, atol, rtol):
    """(whether all are close, the largest difference)."""
    close, largest = True, 0.0
    for a, b in zip(base, new, strict=True):
        distance = 0.0 if a == b else abs(b - a)  # equal infinities have no difference
        if not distance <= atol + rtol * abs(a):
            close = False
        largest = max(largest, distance) if not math.isnan(distance) else math.inf
    return close, largest


def compare_file(base, new, atol, rtol):
    """(None if close, else why not; largest difference)."""
    if not new.exists():
        return "is missing", math.inf
    old_values, old_shape = npy.read(base)
    new_values, new_shape = npy.read(new)
    if old_shape != new_shape:
        return f"has the shape {new_shape}, not {old_shape}", math.inf
    close, largest = difference(old_values, new_values, atol, rtol)
    return None if close else f"differs by up to {largest:.6g}", largest


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="acc_allclose", description="compares folders of .npy files")
    parser.add_argument("--base_path", type=pathlib.Path, required=True)
    parser.add_argument("--new_path", type=pathlib.Path, required=True)
    parser.add_argument("--atol", type=float, default=5e-3)
    parser.add_argument("--rtol", type=float, default=0.0)
    options = parser.parse_args(arguments)
    files = sorted(options.base_path.glob("*.npy"))
    if not files:
        print(f"{options.base_path} has no .npy files")
        return 2
    bad, largest = 0, 0.0
    for file in files:
        try:
            why, far = compare_file(file, options.new_path / file.name, options.atol, options.rtol)
        except (OSError, ValueError) as error:
            why, far = str(error), math.inf
        largest = max(largest, far)
        if why:
            bad += 1
            print(f"{file.name} {why}")
    print(f"{len(files) - bad} of {len(files)} files are close (atol {options.atol:g}, rtol "
          f"{options.rtol:g}); the largest difference is {largest:.6g}")
    return 1 if bad else 0
