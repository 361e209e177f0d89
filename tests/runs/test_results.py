import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from folders import go
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer import event_file_writer

from rl_plasticity import supervised, train
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.names import RunName
from rl_plasticity.runs.results import Results

DOCS = Path(__file__).parents[2] / "docs"
TINY = ["device=cpu", "compile=false", "threads=1", "seeds=1", "log_every_updates=1", "measure_every_updates=1"]
RL = [*TINY, "env=gym:Pendulum-v1", "agent.hidden=[8,8]", "batch_size=8", "random_env_steps=10", "eval_episodes=1"]
RL += ["env.action_repeat=4", "total_env_steps=54", "replay_ratio=0.05", "eval_every_env_steps=54"]
RL += ["reset=redo", "reset.every_updates=1"]
IMAGES = [*TINY, "data.train_size=100", "net.widths=[8]", "num_tasks=1", "epochs_per_task=2", "task=pixel_permutation"]
IMAGES += ["reset=redo", "reset.every_updates=1"]


def results_of(folder, names, *rest, **more):
    return Results(RunFolder(folder), [RunName.parse(name) for name in names], *rest, **more)


def test_each_run_has_a_row_and_one_with_nothing_to_report_none_and_rates_have_a_file_of_their_own(tmp_path):
    results = results_of(tmp_path, ["4", "5"])
    results.write(10, {"loss": torch.tensor([1.0, 2.0])})
    results.write(10, {"train/return": np.array([7.0, 0.1])}, where=np.array([False, True]))
    results.write(20, {"loss": torch.tensor([1.0, float("nan")])})
    results.write_timing(10, {"updates_per_second": 99.5})
    results.close()
    rows = ["4,10,loss,1.0", "5,10,loss,2.0", "5,10,train/return,0.1", "4,20,loss,1.0", "5,20,loss,nan"]
    assert (tmp_path / "metrics.csv").read_text().splitlines() == ["run,step,name,value", *rows]
    assert (tmp_path / "timing.csv").read_text() == "run,step,name,value\nmean,10,updates_per_second,99.5\n"


def events_of(folder):
    """The points ``(step, value)`` by TensorBoard's run and tag."""
    found = {}
    for run in sorted({path.parent for path in folder.rglob("events.out.*")}):
        events = EventAccumulator(str(run)).Reload()
        points = {t: [(e.step, e.value) for e in events.Scalars(t)] for t in events.Tags()["scalars"]}
        found[str(run.relative_to(folder))] = points
    return found


def test_tensorboard_has_the_same_values_and_each_seed_is_a_run_where_there_are_several(tmp_path):
    def written(folder, names, values):
        folder.mkdir()
        results = results_of(folder, names)
        results.write(10, {"critic/loss": torch.tensor(values)})
        results.write_timing(10, {"seconds_left": 3.0})
        results.close()
        return events_of(folder / "tensorboard")

    def loss(value):
        return {"networks/critic/loss": [(10, value)]}

    rates = {".": {"timing/seconds_left": [(10, 3.0)]}}
    seeds = written(tmp_path / "seeds", ["4", "5"], [1.0, 2.0])
    assert seeds == rates | {"seed4": loss(1.0), "seed5": loss(2.0)}
    names = ["reg.name=none seed=4", "reg.name=none seed=5", "reg.name=l2 reg.file=a/b seed=4"]
    assert written(tmp_path / "settings", names, [1.0, 2.0, 7.0]) == rates | {
        "reg.name=l2_reg.file=a-b_seed4": loss(7.0),
        "reg.name=none_seed4": loss(1.0),
        "reg.name=none_seed5": loss(2.0),
    }


@pytest.mark.parametrize("names", [["4"], ["4", "5"]])
def test_a_resumed_run_goes_on_in_tensorboard_s_runs_with_every_point_once(names, tmp_path, monkeypatch):
    # Files of one process and second are read in the order of a number's text.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))

    def write(results, *steps):
        for step in steps:
            results.write(step, {"loss": torch.tensor([float(step)] * len(names))})
            results.write_timing(step, {"seconds_left": 3.0})
        sizes = results.sync()
        results.close()
        return sizes

    write(results_of(tmp_path, names), 0, 10)  # killed before its first checkpoint: begun again
    sizes = write(results_of(tmp_path, names), 0, 10)  # a checkpoint at step 10, after what is shown of that step
    write(results_of(tmp_path, names, sizes, step=10), 20, 30)  # killed
    write(results_of(tmp_path, names, sizes, step=10), 20)  # and again
    write(results_of(tmp_path, names, sizes, step=10), 20, 30, 40)
    steps = [0, 10, 20, 30, 40]
    found = events_of(tmp_path / "tensorboard")
    assert len(found) == (1 if len(names) == 1 else 3)
    for points in found.values():
        for tag, shown in points.items():
            assert shown == [(step, 3.0 if tag.startswith("timing") else float(step)) for step in steps]


def test_tensorboard_has_each_run_s_hyperparameters_and_what_they_are_compared_by(tmp_path):
    names = ["reg.name=none seed=4", "reg.name=l2 seed=4"]
    settings = {"env.name": "walker-run", "agent.layer_norm": False, "agent.hidden": [8, 8], "lr": 1e-3, "data": None}
    results_of(tmp_path, names, settings=settings).close()
    found = {}
    for run in (tmp_path / "tensorboard").iterdir():
        if run.is_dir():
            content = EventAccumulator(str(run)).Reload().PluginTagToContent("hparams")
            start = HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info.hparams
            found[run.name] = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.items()}
            experiment = HParamsPluginData.FromString(content["_hparams_/experiment"]).experiment
            assert [metric.name.tag for metric in experiment.metric_infos] == ["eval/return"]
    assert {name: own["reg.name"] for name, own in found.items()} == {f"reg.name={n}_seed4": n for n in ("none", "l2")}
    assert {(own["agent.layer_norm"], own["agent.hidden"], own["lr"]) for own in found.values()} == {
        (False, "[8, 8]", 1e-3)
    }


def documented(command):
    """The names that the documentation gives for "RL" or "supervised", without layers."""
    with (DOCS / "results" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["command"] in ("both", command) and row["of"] != "papers"]
    names = {row["name"].replace("SPLIT", split) for row in rows for split in ("train", "validation", "test")}
    networks = ("critic/", "actor/") if command == "RL" else ("net/",)
    return {re.sub("^N/", network, name) for name in names for network in networks}


CHANGING = ["env.changes=[observation_shift]", "env.switch_every_env_steps=27"]


@pytest.mark.parametrize(
    ("name", "module", "arguments"), [("RL", train, [*RL, *CHANGING]), ("supervised", supervised, IMAGES)]
)
def test_the_tags_in_tensorboard_are_those_of_the_documentation(name, module, arguments, tmp_path):
    folder = go(module.command, [*arguments, f"out={tmp_path / 'run'}"])
    tags = EventAccumulator(str(folder / "tensorboard")).Reload().Tags()["scalars"]
    timing = {tag.removeprefix("timing/") for tag in tags if tag.startswith("timing/")}
    names = [re.sub("^networks/|^train/(?!return)", "", tag) for tag in tags]
    assert sorted(tags)[0].startswith("eval/")
    logged = {"/".join(name.split("/")[:2]) for name in names} - {f"timing/{name}" for name in timing}
    unit = "env_steps" if name == "RL" else "epochs"
    assert timing <= {"updates_per_second", "seconds_left", *(f"{unit}_{n}" for n in ("per_second", "done", "left"))}
    assert logged - documented(name) == set()
    assert {t for t in documented(name) - logged if not re.search("validation|saturated|trainability", t)} == set()
