"""What figures say of themselves, and how wide they are."""

import pytest
from folders import curve, write_run

from rl_plasticity.comparison.figures import draw
from rl_plasticity.comparison.groups import group
from rl_plasticity.comparison.loading import read
from rl_plasticity.comparison.plotting import looks
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


def test_no_method_is_gray_and_dotted_and_a_well_known_method_has_one_color_in_every_figure():
    first = looks(["none", "redo", "spectral coef=1e-4", "spectral coef=1e-3", "none + periodic"])
    second = looks(["spectral", "none layer_norm=false", "none layer_norm=true", "swr layer_norm=false"])
    assert first["none"] == second["none layer_norm=false"] == {"color": "gray", "ls": ":"}
    assert first["spectral coef=1e-4"] == second["spectral"]
    third = looks(["LayerNorm", "LayerNorm + spectral", "spectral"])
    assert second["none layer_norm=true"] == third["LayerNorm"]
    assert looks(["spectral layer_norm=true"])["spectral layer_norm=true"] == third["LayerNorm + spectral"]
    for styles in (first, second, looks([f"method {i}" for i in range(20)])):
        assert len({(*style.values(),) for style in styles.values()}) == len(styles)
