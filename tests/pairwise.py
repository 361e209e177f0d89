"""Few combinations in which values of different factors still meet."""

import itertools
from collections.abc import Iterator, Mapping, Sequence


def pairs_of(factors: Mapping[str, Sequence], most: int | None = None) -> Iterator[tuple]:
    """Each pair of values of two factors, of those with at most `most` pairs where that is given."""
    for (a, of_a), (b, of_b) in itertools.combinations(factors.items(), 2):
        if most is None or len(of_a) * len(of_b) <= most:
            for x, y in itertools.product(of_a, of_b):
                yield (a, x), (b, y)


def pairwise(factors: Mapping[str, Sequence], most: int | None = None) -> list[dict]:
    """Rows, each with a value of every factor, such that each of `pairs_of` is in one of them.

    Greedy: a row starts with a pair that is missing, and each other factor takes the value with the most missing pairs,
    of these the one that was taken least.
    """
    missing = dict.fromkeys(pairs_of(factors, most))
    taken = {(name, value): 0 for name, values in factors.items() for value in values}
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name, values in factors.items():
            if name not in row:
                row[name] = max(values, key=lambda v: (_gain(row, name, v, missing), -taken[name, v]))
        for one in row.items():
            taken[one] += 1
        for pair in itertools.permutations(row.items(), 2):
            missing.pop(pair, None)
        rows.append({name: row[name] for name in factors})
    return rows


def _gain(row: Mapping, name: str, value: object, missing: Mapping) -> int:
    return sum(((name, value), other) in missing or (other, (name, value)) in missing for other in row.items())
