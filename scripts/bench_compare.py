"""How long it takes to read many runs: ``python scripts/bench_compare.py [runs=1000] [rows=10000]``.

Makes folders of one run each in a temporary directory, 16 metrics as the training command writes them, reads them all
as ``compare`` does, and prints CPU seconds.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from rl_plasticity.comparison.loading import read
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Train
from rl_plasticity.runs.folder import find

NAMES = ["eval/return", "train/return", "q_mean", "entropy", "alpha"]
NAMES += [f"{net}/{m}" for net in ("critic", "actor") for m in ("loss", "penalty", "gradient_norm", "weight_norm")]
NAMES += ["critic/sigma1", "actor/sigma1", "q_overestimation"]


def main() -> None:
    settings = {"runs": 1000, "rows": 10_000} | {k: int(v) for k, v in (a.split("=") for a in sys.argv[1:])}
    rng = np.random.default_rng(0)
    config = OmegaConf.create(schema.dump(schema.load(Train, [])))
    with tempfile.TemporaryDirectory() as place:
        for run in range(settings["runs"]):
            folder = Path(place) / f"run_{run}"
            folder.mkdir()
            config.seed = run
            (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
            values = rng.standard_normal(settings["rows"])
            rows = [f"{run},{1000 * (i // 16)},{NAMES[i % 16]},{float(v)!r}\n" for i, v in enumerate(values)]
            (folder / "metrics.csv").write_text("run,step,name,value\n" + "".join(rows))
        start = time.process_time()
        named, below = find([place])
        runs = [run for folder in named + below for run in read(folder)]
        seconds = time.process_time() - start
    print(f"{len(runs)} runs of {settings['rows']} rows read in {seconds:.1f} CPU seconds")


if __name__ == "__main__":
    main()
