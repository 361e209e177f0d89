"""A sweep on a Ray cluster of two nodes, one of which is killed: ``python scripts/test_ray.py``.

The cluster is real: two raylets on this machine, one core each. When both work on a run the second one is killed with
SIGKILL. The sweep must go on, end with status 0, and have the numbers of a sweep that nothing happened to.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ray.cluster_utils import Cluster

SWEEP = ["-m", "reg=none,spectral", "seed=0,1", "data.train_size=500", "num_tasks=3", "epochs_per_task=60"]
SWEEP += ["batch_size=50", "eval_every_epochs=10", "checkpoint_every_epochs=2"]
SWEEP += ["device=cpu", "compile=false", "threads=1"]


def sweep(out: Path, *launcher: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rl_plasticity.supervised", *SWEEP, f"out={out}", *launcher]
    return subprocess.Popen(command, text=True)


def runs(out: Path) -> list[Path]:
    return sorted(path.parent for path in out.glob("*/config.yaml"))


def main() -> None:
    temporary = Path(tempfile.mkdtemp())
    quiet, faulty = temporary / "uninterrupted", temporary / "on_ray"
    assert sweep(quiet).wait() == 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    here = ("launcher=ray", f"launcher.address={cluster.address}")
    refused = sweep(faulty, *here, "launcher.num_gpus=1")
    assert refused.wait(60) == 2, "a GPU that no node has must be refused"
    assert not faulty.exists()

    process = sweep(faulty, *here)
    while len([run for run in runs(faulty) if len(list(run.glob("checkpoints/step_*.pt"))) > 1]) < 2:
        assert process.poll() is None, "the sweep ended before the node was killed"
        time.sleep(0.2)
    cluster.remove_node(second, allow_graceful=False)
    status = process.wait()
    cluster.shutdown()

    resumed = 0
    assert status == 0, f"status {status}"
    assert [run.name for run in runs(faulty)] == [run.name for run in runs(quiet)]
    for run in runs(faulty):
        starts = len(json.loads((run / "provenance.json").read_text())["starts"])
        same = (run / "metrics.csv").read_bytes() == (quiet / run.name / "metrics.csv").read_bytes()
        print(f"{run.name}: started {starts} times, metrics {'identical' if same else 'DIFFER'}")
        assert same
        resumed += starts > 1
    assert resumed, "the killed node had no run"
    print(f"{len(runs(faulty))} runs complete and identical, {resumed} of them moved from the killed node")


if __name__ == "__main__":
    main()
