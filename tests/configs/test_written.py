from rl_plasticity.configs import schema, written
from rl_plasticity.configs.commands import Supervised, Train


def load(arguments):
    return schema.load(Train, arguments)


def test_paths_are_taken_as_they_are_written():
    assert load(["out=/tmp/a_reg.coef=0.1_[x](1) y"]).out == "/tmp/a_reg.coef=0.1_[x](1) y"
    assert load(["resume=results/a=b"]).resume == "results/a=b"
    assert "~" not in load(["out=~/x"]).out
    assert load(["out=~nobody-of-that-name/ü"]).out == "~nobody-of-that-name/ü"
    for root in ("/data/ü ~=[x] (1), {y}", "a=b", "~nobody-of-that-name", "null/x"):
        assert schema.load(Supervised, ["data=mnist", f"data.root={root}"]).data["root"] == root
    assert schema.load(Supervised, ["data=mnist", "data.root=null"]).data["root"] is None
    assert written.each(Supervised, "data.root=a,b") == ["data.root=a,b"]
