"""``python -m papers.task_ends``: the returns at the ends of tasks that change."""

from folders import curve, write_run

from papers import task_ends


def test_there_is_a_line_for_each_run_and_task_with_its_method_and_what_was_known_before(tmp_path):
    given = ["env=walker-stand", "env.changes=[dynamics]", "env.switch_every_env_steps=100", "total_env_steps=200"]
    for name, reg in (("a", "none"), ("b", "l2")):
        rows = {
            seed: curve([10.0 + seed, 20.0], "task/return", 100)
            | curve([10.0, 20.0], "eval/return", 100)
            | curve([1.0, 2.0 + seed], "task/first_return", 100)
            for seed in (0, 1)
        }
        write_run(tmp_path / name, [*given, f"reg={reg}", "random_env_steps=0", "replay_ratio=1"], rows)
    assert task_ends.lines(tmp_path) == [
        (folder, method, seed, task, first, end)
        for folder, method in (("a", "none"), ("b", "l2"))
        for seed in (0, 1)
        for task, first, end in ((0, 1.0, 10.0 + seed), (1, 2.0 + seed, 20.0))
    ]
