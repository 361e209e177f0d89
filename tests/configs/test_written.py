import pytest
from conftest import refused

from rl_plasticity import plugins
from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.errors import SettingsError


def load(arguments):
    return schema.load(Train, arguments)


def test_paths_are_taken_as_they_are_written():
    assert load(["out=/tmp/a_reg.coef=0.1_[x](1) y"]).out == "/tmp/a_reg.coef=0.1_[x](1) y"
    assert load(["resume=results/a=b"]).resume == "results/a=b"
    assert "~" not in load(["out=~/x"]).out
    assert load(["out=~nobody-of-that-name/ü"]).out == "~nobody-of-that-name/ü"
    for root in ("/data/ü ~=[x] (1), {y}", "a=b", "~nobody-of-that-name", "null/x"):
        assert schema.load(Supervised, ["data=mnist", f"data.root={root}"]).data.root == root
    assert schema.load(Supervised, ["data=mnist", "data.root=null"]).data.root is None
    assert written.each("data.root=a,b") == ["data.root=a,b"]


def test_values_with_commas_that_are_several_runs_are_those_of_a_sweep():
    assert written.each("agent.hidden=[64,64],[8]") == ["agent.hidden=[64,64]", "agent.hidden=[8]"]
    assert written.each("seeds=1,4") == ["seeds=1", "seeds=4"]
    with pytest.raises(SettingsError, match=r"-m\b"):
        written.parse("reg=none,l2")


@pytest.mark.parametrize("named", ["norm_keep", "norm_keep.py", "[norm_keep.py]", "./norm_keep.py"])
def test_a_plug_may_be_named_without_a_list_and_as_a_file(named, monkeypatch):
    loaded = []
    monkeypatch.setattr(plugins, "load_one", lambda module, asked: loaded.append(module))
    load([f"plugins={named}"])
    assert loaded == ["norm_keep"]
    refused(lambda: load(["plugins=[3]"]), "plugins", "a list of words", "[3]")
