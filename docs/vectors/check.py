"""Compares tensors that a port made with expected.safetensors: ``python check.py mine.safetensors [tolerance]``.

The port's tensors have the names of the expected ones; methods that it does not have are passed over. NaN among what is
expected stands for a weight drawn at random. An error is abs(mine - expected) / (1 + abs(expected)), at most 1e-4.
"""

import sys
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file


def error(mine, expected):
    if mine is None or mine.shape != expected.shape:
        return np.inf
    certain = ~np.isnan(expected)
    errors = abs(mine - expected)[certain] / (1 + abs(expected))[certain]
    return np.inf if np.isnan(errors).any() else errors.max(initial=0)


def main(path, tolerance=1e-4):
    expected = load_file(Path(__file__).parent / "expected.safetensors")
    try:
        mine = load_file(path)
    except (OSError, SafetensorError) as why:
        sys.exit(f"{path}: {why}")
    if not mine:
        sys.exit(f"{path}: no tensors")
    if unknown := sorted(mine.keys() - expected.keys()):
        sys.exit(f"{path}: {unknown[0]} is not among the expected tensors")
    wrong = False
    for method in sorted({name.split("/")[0] for name in mine}):
        errors = {n: error(mine.get(n), t) for n, t in expected.items() if n.startswith(f"{method}/")}
        worst = max(errors, key=errors.get)
        right = errors[worst] <= float(tolerance)
        wrong |= not right
        print(f"{'right' if right else 'WRONG'}  {method}: {errors[worst]:.1e} at {worst}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) in (2, 3) else __doc__)
