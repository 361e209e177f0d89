"""``python -m papers.gains``: the table of gains in the studies of reinforcement learning."""

from pathlib import Path

from papers import gains


def test_the_shipped_table_is_what_the_command_prints(capsys):
    gains.main()
    assert capsys.readouterr().out == (Path(gains.__file__).parents[1] / "docs/results/rl/gains.csv").read_text()
