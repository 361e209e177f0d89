"""What earlier versions had ends in a line that says so."""

import subprocess
import sys

import pytest

from rl_plasticity import command_line
from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.configs.gone import GONE
from rl_plasticity.errors import SettingsError

SAID = {
    "logger": (Train, ["logger=wandb"]),
    "allow_lost_rows": (Supervised, ["allow_lost_rows=true"]),
    "reg.from_update": (Train, ["reg.from_update=3"]),
    "reg.until_epoch": (Supervised, ["reg=[none,spectral+l2]", "reg.l2.until_epoch=3"]),
    "reg=all": (Train, ["reg=[all]"]),
    "glob(": (Train, ["reg=glob(s*)"]),
    "${": (Train, ["total_env_steps=${buffer_size}"]),
    "agent.bins": (Train, ["agent.bins=51"]),
    "preset=spectral": (Supervised, ["preset=spectral"]),
}


@pytest.mark.parametrize("name", SAID)
def test_what_went_is_said_with_what_replaces_it(name):
    kind, arguments = SAID[name]
    with pytest.raises(SettingsError) as error:
        schema.load(kind, arguments)
    assert f"{name} {GONE[name]}" in str(error.value)


def test_an_option_that_went_is_said_with_what_replaces_it():
    with pytest.raises(SettingsError, match=r"^choose went from compare"):
        command_line.places_and_options(["results", "choose=reg.coef"], ["metric"])


@pytest.mark.parametrize("how", [["rl_plasticity", "live"], ["rl_plasticity.live"], ["rl_plasticity.reproduce"]])
def test_a_command_that_went_says_what_replaces_it_with_status_2(how):
    done = subprocess.run([sys.executable, "-m", *how, "results"], capture_output=True, text=True)
    name = how[-1].rpartition(".")[2]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"rl_plasticity: command {name} {GONE[f'command {name}']}\n"
