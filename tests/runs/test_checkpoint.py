import hashlib
import io
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from conftest import refused

from rl_plasticity.runs import checkpoint


def save(folder, *steps, state=None):
    checkpoints = checkpoint.Checkpoints(folder)
    return [checkpoints.save(step, {}, {"step": step} if state is None else state) for step in steps][-1]


class Rows:
    """A table of numbered rows that holds the last `capacity`."""

    def __init__(self, capacity):
        self.capacity, self.added = capacity, 0

    @property
    def size(self):
        return min(self.added, self.capacity)

    def position(self):
        return {"added": self.added, "size": self.size}

    def state_dict(self):
        return {**self.position(), **self.since(0)}

    def load_state_dict(self, state):
        self.restored = state

    def since(self, row):
        return {"number": torch.arange(max(row, self.added - self.size), self.added)}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_the_newest_is_loaded_and_only_two_are_kept_besides_that_of_step_0(tmp_path):
    save(tmp_path, 5, 100, 20_000_000)
    assert checkpoint.load(tmp_path)["step"] == 20_000_000
    assert names(tmp_path) == ["step_000000100.pt", "step_020000000.pt"]
    save(tmp_path, 0)
    save(tmp_path, 100, 200, 300)
    assert names(tmp_path) == ["step_000000000.pt", "step_000000200.pt", "step_000000300.pt"]
    assert checkpoint.load(tmp_path, 0)["step"] == 0


@pytest.fixture
def table(tmp_path):
    """A table of the last ten rows, and a function that saves it when it has had so many rows in all."""
    rows, checkpoints = Rows(10), checkpoint.Checkpoints(tmp_path)

    def save_at(*added):
        for rows.added in added:
            checkpoints.save(rows.added, {"rows": rows}, {"t": torch.zeros(1000)})

    return rows, save_at


def held(folder):
    return checkpoint.load(folder)["table"]["number"].tolist()


def test_each_row_is_written_once_and_files_go_when_no_checkpoint_needs_them(table, tmp_path):
    _, save_at = table
    for added, numbers, files in (
        (4, range(4), [(0, 4)]),
        (8, range(8), [(0, 4), (4, 8)]),
        (8, range(8), [(0, 4), (4, 8)]),  # nothing new
        (15, range(4, 15), [(0, 4), (4, 8), (8, 15)]),  # rows 0 to 4 are gone, but the checkpoint before has them
        (17, range(4, 17), [(4, 8), (8, 15), (15, 17)]),
        (40, range(30, 40), [(4, 8), (8, 15), (15, 17), (30, 40)]),  # 17 to 29 came and went
        (41, range(30, 41), [(30, 40), (40, 41)]),
    ):
        written = {p: p.stat().st_mtime_ns for p in tmp_path.glob("rows_*")}
        save_at(added)
        assert held(tmp_path) == list(numbers)
        assert [n for n in names(tmp_path) if n[0] == "r"] == [f"rows_{a:09d}_{b:09d}.pt" for a, b in files]
        assert all(p.stat().st_mtime_ns == t for p, t in written.items() if p.exists())


def test_a_run_that_goes_on_from_an_older_checkpoint_writes_the_lost_rows_again(table, tmp_path):
    rows, save_at = table
    save_at(2, 5, 9)
    flip(tmp_path / "step_000000009.pt", 999)
    saved = checkpoint.load(tmp_path)
    assert saved["table"]["number"].tolist() == list(range(5))
    rows.added = 7  # it is stopped before it comes to 9 again
    checkpoint.Checkpoints(tmp_path, saved).save(7, {"rows": rows})
    assert names(tmp_path) == [
        *("rows_000000000_000000002.pt", "rows_000000002_000000005.pt", "rows_000000005_000000007.pt"),
        *("step_000000005.pt", "step_000000007.pt"),  # the damaged one counts for nothing
    ]
    assert held(tmp_path) == list(range(7))


def test_a_file_whose_name_is_not_exactly_a_checkpoint_s_is_the_user_s(table, tmp_path):
    theirs = ["step_best.pt", "step_backup.pt", "rows_mine.pt", "step_7.pt", "step_0000000008.pt", "step_²²²²²²²²².pt"]
    theirs += ["rows_000000001.pt", "step_000000009.pt.bak", "rows_000000000_000000004_000000008.pt", "9.pt", "x.txt"]
    for name in theirs:
        (tmp_path / name).write_text(name)
    refused(lambda: checkpoint.load(tmp_path), match="checkpoint")
    _, save_at = table
    save_at(30, 60, 90)
    ours = {"step_000000060.pt", "step_000000090.pt", "rows_000000050_000000060.pt", "rows_000000080_000000090.pt"}
    assert {*names(tmp_path)} - {*theirs} == ours
    assert all((tmp_path / name).read_text() == name for name in theirs)
    assert checkpoint.load(tmp_path)["at"] == 90


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "rows flipped", "rows missing"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(damage, table, tmp_path, capsys):
    table[1](4, 8)
    path = tmp_path / ("rows_000000004_000000008.pt" if "rows" in damage else "step_000000008.pt")
    if "flipped" in damage:
        flip(path, 4000)
    elif "missing" in damage:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 500 * (damage != "empty")])
    assert checkpoint.load(tmp_path)["at"] == 4
    said = capsys.readouterr().err
    assert re.fullmatch(rf".*{path}.*step_000000004\.pt\n", said)
    refused(lambda: checkpoint.load(tmp_path, 8), match="cannot be read", error=ValueError)


def test_damage_to_rows_that_both_checkpoints_need_is_an_error_but_no_reason_not_to_look(table, tmp_path):
    table[1](4, 8, 12)
    flip(checkpoint.checkpoint_path(tmp_path, 4, 8), 4000)
    refused(lambda: checkpoint.load(tmp_path), "rows_000000004_000000008.pt")
    assert checkpoint.load(tmp_path, whole=False)["at"] == 12


def test_another_format_is_refused_but_the_one_before_it_can_be_looked_at(tmp_path, monkeypatch):
    for number in (3, 4, 9):
        monkeypatch.setattr(checkpoint, "FORMAT", number)
        path = save(tmp_path / str(number), 5)
        monkeypatch.undo()
        refused(lambda: checkpoint.load(path.parent), str(path), checkpoint.__version__)  # noqa: B023
        if number != 4:
            refused(lambda: checkpoint.load(path.parent, whole=False), str(path), checkpoint.__version__)  # noqa: B023
    assert checkpoint.load(tmp_path / "4", whole=False)["at"] == 5


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def half(file):
        file.write(b"ne")
        raise OSError("disk full")

    refused(lambda: checkpoint.write_atomically(path, half), match="disk full", error=OSError)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    (tmp_path / ".new.tmp").symlink_to(path)  # by somebody who knows the name of the temporary file
    checkpoint.write_atomically(tmp_path / "new", lambda file: file.write(b"new"))
    assert path.read_bytes() == b"old"


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


def test_a_checkpoint_that_would_run_code_is_refused_even_with_a_right_checksum(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = save(tmp_path, 1)
    whole = io.BytesIO()
    torch.save({"state": Evil()}, whole)
    for content in (pickle.dumps(Evil()), whole.getvalue()):
        for signed in (content, content + hashlib.sha256(content).digest()):
            (tmp_path / "step_000000002.pt").write_bytes(signed)
            assert checkpoint.load(tmp_path)["step"] == 1
            refused(lambda: checkpoint.load(tmp_path, 2), match="cannot be read", error=ValueError)
    good.unlink()
    refused(lambda: checkpoint.load(tmp_path), match="cannot be read", error=ValueError)
    assert not Path("evil").exists()
