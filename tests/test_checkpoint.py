import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_plasticity import checkpoint


def test_tensors_arrays_and_plain_values_come_back(tmp_path):
    state = {"t": torch.arange(3), "a": np.array([1.5, 2.5]), "n": 7, "s": "x", "l": [{"b": torch.ones(2)}], "x": None}
    checkpoint.save(tmp_path / "c", 5, state)
    loaded = checkpoint.load(tmp_path / "c")
    assert torch.equal(loaded["t"], torch.arange(3))
    assert loaded["a"].tolist() == [1.5, 2.5]
    assert (loaded["n"], loaded["s"], loaded["x"]) == (7, "x", None)
    assert torch.equal(loaded["l"][0]["b"], torch.ones(2))


def test_the_newest_is_loaded_and_only_two_are_kept(tmp_path):
    for step in (5, 100, 20_000_000):
        checkpoint.save(tmp_path, step, {"step": step})
    assert checkpoint.load(tmp_path)["step"] == 20_000_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000000100.pt", "step_020000000.pt"]


def test_one_is_loaded_by_its_step_and_a_missing_one_is_answered_with_those_there_are(tmp_path):
    for step in (5, 100):
        checkpoint.save(tmp_path, step, {"step": step})
    assert checkpoint.load(tmp_path, 5)["step"] == 5
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 10 in .* \(valid: 5, 100\)"):
        checkpoint.load(tmp_path, 10)


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def half(file):
        file.write(b"ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoint.write_atomically(path, half)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step_000000001.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.load(tmp_path)
    torch.save({"state": Evil()}, tmp_path / "step_000000002.pt")
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.load(tmp_path)
    assert not Path("evil").exists()


def test_a_truncated_checkpoint_and_a_missing_one_have_their_own_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        checkpoint.load(tmp_path)
    path = checkpoint.save(tmp_path, 1, {"t": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"step_000000001\.pt cannot be read"):
        checkpoint.load(tmp_path)
