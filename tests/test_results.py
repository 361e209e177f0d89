import json

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_plasticity.results import Results, write_provenance


def test_each_run_and_the_mean_have_a_row_and_a_run_with_nothing_to_report_has_none(tmp_path):
    results = Results(tmp_path, ["4", "5"])
    results.log(10, {"loss": torch.tensor([1.0, 2.0])})
    results.log(10, {"train/return": np.array([7.0, 0.1])}, where=np.array([False, True]))
    results.log(20, {"loss": torch.tensor([1.0, float("nan")])})
    results.close()
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "run,step,name,value",
        "4,10,loss,1.0",
        "5,10,loss,2.0",
        "mean,10,loss,1.5",
        "5,10,train/return,0.1",
        "mean,10,train/return,0.1",
        "4,20,loss,1.0",
        "5,20,loss,nan",
        "mean,20,loss,nan",
    ]


def test_one_run_has_no_separate_mean(tmp_path):
    results = Results(tmp_path, ["4"])
    results.log(10, {"loss": torch.tensor([1.0])})
    results.close()
    assert (tmp_path / "metrics.csv").read_text() == "run,step,name,value\n4,10,loss,1.0\n"


def test_rates_go_to_a_file_of_their_own(tmp_path):
    results = Results(tmp_path, ["4"])
    results.time(10, {"updates_per_second": 99.5})
    results.close()
    assert (tmp_path / "timing.csv").read_text() == "run,step,name,value\nmean,10,updates_per_second,99.5\n"
    assert "99.5" not in (tmp_path / "metrics.csv").read_text()


def test_resuming_drops_the_rows_after_the_checkpoint_and_goes_on(tmp_path):
    results = Results(tmp_path, ["4"])
    results.log(10, {"loss": torch.tensor([1.0])})
    sizes = results.sync()
    results.log(20, {"loss": torch.tensor([2.0])})
    results.close()
    results = Results(tmp_path, ["4"], sizes, step=10)
    results.log(20, {"loss": torch.tensor([3.0])})
    results.close()
    assert (tmp_path / "metrics.csv").read_text() == "run,step,name,value\n4,10,loss,1.0\n4,20,loss,3.0\n"


def test_tensorboard_has_the_same_values(tmp_path):
    results = Results(tmp_path, ["4", "5"])
    results.log(10, {"critic/loss": torch.tensor([1.0, 2.0])})
    results.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]} == {
        "critic/loss/4": 1.0,
        "critic/loss/5": 2.0,
        "critic/loss/mean": 1.5,
    }


def test_provenance_names_versions_and_command_and_keeps_every_start(tmp_path):
    path = tmp_path / "provenance.json"
    write_provenance(path, "cpu")
    write_provenance(path, "cpu")
    starts = json.loads(path.read_text())["starts"]
    assert len(starts) == 2
    assert starts[0]["libraries"]["torch"] == torch.__version__
    assert {"commit", "device", "command", "rl_plasticity", "python", "threads", "time"} <= set(starts[0])
