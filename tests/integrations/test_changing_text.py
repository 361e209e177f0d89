"""The example that shows what a regularizer is good for."""

import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
EXAMPLE = Path(__file__).parents[2] / "examples" / "changing_text.py"


@pytest.mark.filterwarnings("ignore")
def test_it_draws_a_curve_for_each_method_and_only_the_regularizer_differs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLE))
    results = example["main"](seeds=1, tasks=2, steps=12)
    assert [*results] == ["none", "l2_init", "spectral"]
    assert (tmp_path / "changing_text.png").stat().st_size > 5_000
    assert len({tuple(ends[0]) for ends in results.values()}) == 3
    assert results["none"][0, 1] < torch.log(torch.tensor(32.0))
    example["METHODS"]["spectral"]["coef"] = 0.0
    assert example["losses"]("spectral", 0, 2, 12) == list(results["none"][0])  # a strength of 0 is no regularizer
