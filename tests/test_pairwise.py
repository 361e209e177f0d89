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
