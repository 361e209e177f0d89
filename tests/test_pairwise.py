import pytest
from pairwise import pairs_of, pairwise

FACTORS = {"a": [1, 2, 3, 4], "b": "xyz", "c": [True, False], "d": [1, 2, 3], "e": [None]}


@pytest.mark.parametrize(("most", "pairs"), [(None, 65), (9, 41), (6, 24)])
def test_each_pair_of_values_is_in_a_row_and_there_are_far_fewer_than_combinations(most, pairs):
    rows = pairwise(FACTORS, most)
    wanted = list(pairs_of(FACTORS, most))
    assert len(wanted) == pairs
    for pair in wanted:
        assert any(row.items() >= dict(pair).items() for row in rows), pair
    assert all(row.keys() == FACTORS.keys() for row in rows)
    assert len(rows) <= 16  # of 72


def test_the_values_of_factors_whose_pairs_are_too_many_are_all_taken_and_evenly():
    rows = pairwise({"a": range(10), "b": range(9), "c": "xyz"}, most=30)
    assert 30 <= len(rows) <= 33
    for name, values in (("a", range(10)), ("b", range(9))):
        counts = [sum(row[name] == value for row in rows) for value in values]
        assert min(counts) >= 3
