"""A seeded sample of ``scripts/fuzz.py``: hostile command lines and damaged files through every command."""

import sys

from folders import script

fuzz = script("fuzz")


def test_sixty_hostile_cases_end_in_a_documented_status_and_neither_leave_nor_lose_a_file(tmp_path):
    counts, bad = fuzz.fuzz(60, seed=0, place=tmp_path, verbose=False)
    assert bad == []
    assert sum(count["cases"] for count in counts.values()) == 60
    assert min(sum(count[end] for count in counts.values()) for end in ("0", "1", "2", "143")) > 0  # all ends occur


def test_a_command_that_leaves_something_loses_something_or_raises_is_found(tmp_path, monkeypatch):
    ends = {
        "left": lambda: (tmp_path / "new").touch() or sys.exit(2),
        "lost": lambda: (tmp_path / "run" / "notes.txt").write_text("other"),
        "traceback": lambda: 1 / 0,
        "status": lambda: sys.exit(3),
    }
    one = fuzz.Case("kind", "status", ["run"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("of the user")
    sound = fuzz.tree(tmp_path)
    for wrong, end in ends.items():
        monkeypatch.setitem(fuzz.CALLS, "status", end)
        outcome = fuzz.run(one, tmp_path, sound, lambda case: fuzz.here(case, "ascii"))
        assert wrong in fuzz.faults(one, outcome), wrong
        assert fuzz.tree(tmp_path) == sound
