"""What figures say of themselves, and how wide they are."""

import pytest
from folders import curve, write_run

from rl_plasticity.comparison.figures import draw
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.table import summarize
from rl_plasticity.runs.folder import RunFolder


def comparison_of(place, seeds):
    runs = []
    for reg, by in (("none", 1.0), ("l2", 2.0)):
        rows = {str(s): curve([by, by + s]) | curve([0.1, 0.2 + s], "q_mean") for s in range(seeds)}
        runs += read(RunFolder(write_run(place / reg, [f"reg={reg}", "total_env_steps=2000"], rows)))
    return summarize(group(runs))


@pytest.mark.parametrize(("seeds", "promised"), [(1, False), (3, False), (5, True)])
def test_a_caption_promises_no_interval_that_is_not_drawn(tmp_path, seeds, promised):
    captions = {drawn.name: drawn.caption for drawn in draw(comparison_of(tmp_path, seeds))}
    assert {"learning_curves", "final_performance", "metrics_other"} <= {*captions}
    for name, caption in captions.items():
        assert ("interval" in caption) == promised, (name, caption)


def test_a_metric_that_is_0_throughout_has_no_panel_and_one_that_is_once_not_has(tmp_path):
    zero, once = (curve(values, name) for values, name in (([0, 0, 0], "N/reset_units"), ([0, 1, 0], "N/resets")))
    rows = {str(seed): curve([1.0, 2.0, 3.0]) | zero | once for seed in range(2)}
    folder = write_run(tmp_path / "run", ["reg=none", "total_env_steps=3000"], rows)
    panels = [
        axes.get_title() for drawn in draw(summarize(group(read(RunFolder(folder))))) for axes in drawn.figure.axes
    ]
    assert "N/resets" in panels
    assert "N/reset_units" not in panels
