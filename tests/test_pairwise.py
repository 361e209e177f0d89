import pytest
from pairwise import pairs_of, pairwise

FACTORS = {"a": [1, 2, 3, 4], "b": "xyz", "c": [True, False], "d": [1, 2, 3], "e": [None]}


@pytest.mark.parametrize("most", [None, 9, 6])
def test_each_pair_of_values_is_in_a_row(most):
    rows = pairwise(FACTORS, most)
    wanted = list(pairs_of(FACTORS, most))
    assert wanted
    for pair in wanted:
        assert any(row.items() >= dict(pair).items() for row in rows), pair


def test_pairs_are_of_different_factors_each_once_and_of_the_small_ones_where_that_is_asked():
    assert list(pairs_of({"a": [1, 2], "b": [1], "c": "x"}, most=1)) == [(("b", 1), ("c", "x"))]
    assert len(set(pairs_of(FACTORS))) == len(list(pairs_of(FACTORS))) == 12 + 8 + 12 + 4 + 6 + 9 + 3 + 6 + 2 + 3


def test_a_row_has_a_value_of_every_factor_and_there_are_far_fewer_than_combinations():
    rows = pairwise(FACTORS)
    assert all(row.keys() == FACTORS.keys() for row in rows)
    assert all(row[name] in values for row in rows for name, values in FACTORS.items())
    assert 12 <= len(rows) <= 16  # of 72; the two largest factors alone have 12 pairs


def test_the_values_of_factors_whose_pairs_are_too_many_are_all_taken_and_evenly():
    rows = pairwise({"a": range(10), "b": range(9), "c": "xyz"}, most=30)
    assert 30 <= len(rows) <= 33
    for name, values in (("a", range(10)), ("b", range(9))):
        counts = [sum(row[name] == value for row in rows) for value in values]
        assert min(counts) >= 3
