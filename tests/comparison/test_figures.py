"""What figures say of themselves, and how wide they are."""

import pytest
from folders import curve, write_run

from rl_plasticity.comparison.figures import draw
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.table import summarize
from rl_plasticity.runs.folder import RunFolder


@pytest.mark.parametrize(("seeds", "promised"), [(1, False), (3, False), (5, True)])
def test_a_caption_promises_no_interval_that_is_not_drawn(tmp_path, seeds, promised):
    runs = []
    for reg, by in (("none", 1.0), ("l2", 2.0)):
        rows = {str(s): curve([by, by + s]) | curve([0.1, 0.2 + s], "q_mean") for s in range(seeds)}
        runs += read(RunFolder(write_run(tmp_path / reg, [f"reg={reg}", "total_env_steps=2000"], rows)))
    captions = {drawn.name: drawn.caption for drawn in draw(summarize(group(runs)))}
    assert {"learning_curves", "final_performance", "metrics_other"} <= {*captions}
    for name, caption in captions.items():
        assert ("interval" in caption) == promised, (name, caption)
