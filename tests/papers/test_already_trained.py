"""``docs/already-trained.md``: what helps a network that has stopped learning."""

from papers import already_trained


def test_a_late_method_begins_with_the_network_of_the_night_and_a_fresh_reference_is_another_than_todays(monkeypatch):
    monkeypatch.setattr(already_trained, "LEARNING", 1)
    monkeypatch.setattr(already_trained, "STOPPED", 2)
    monkeypatch.setattr(already_trained, "SHOWN", {"start": (1, 4), "late": (1, 3, 4), "once": (1, 3, 4)})
    methods = {"start": "none", "late": "none, l2_init coef=1, l2_init coef=1 fresh, none", "once": "none, periodic"}
    monkeypatch.setattr(already_trained, "METHODS", methods)
    lines = [*already_trained.measured(0, 10)]
    days = {
        table: [a for t, method, _, day, a in lines if (t, method) == (table, "none") and day > 2] for table in methods
    }
    assert days["start"] == days["once"]
    assert days["late"] == 2 * days["start"]  # and a second time: the first left the night as it was
    today, fresh = ([a for t, m, *_, a in lines if (t, m) == ("late", f"l2_init coef=1{of}")] for of in ("", " fresh"))
    assert today != fresh
