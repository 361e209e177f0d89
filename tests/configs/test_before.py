from rl_plasticity.configs import schema, written
from rl_plasticity.configs.before import GONE, SINCE
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.configs.kinds import KINDS


def without(tree, *names):
    return {n: without(v, *names) if isinstance(v, dict) else v for n, v in tree.items() if n not in names}


def same_run(kind, saved, now):
    assert schema.load_saved(kind, saved) == now
    assert schema.without_machine(kind, saved) == schema.without_machine(kind, vars(now))


def test_settings_that_version_0_2_0_did_not_have_are_what_it_did():
    agent = schema.load(Train, ["reset=periodic"])
    saved = without(vars(agent), "log_std")
    assert saved != vars(agent)
    same_run(Train, saved, agent)
    for kind in (Train, Supervised):
        for reg in ("orthogonal", "l2+orthogonal", ["none", "wrs", "orthogonal+l2"]):
            now = schema.load(kind, written.from_python({"reg": reg}))
            saved = {**vars(now), "reg": without(now.reg, "rect_scale")}
            assert saved["reg"] != now.reg
            same_run(kind, saved, now)


def test_what_they_are_now_is_still_the_default():
    for (group, choice), (name, value) in SINCE.items():
        assert KINDS[group].settings(choice)[name].default == value


def test_looks_that_version_0_2_0_took_make_no_other_run():
    now = schema.load(Supervised, [])
    for taken in (False, True):
        same_run(Supervised, {**vars(now), **dict.fromkeys(GONE, taken)}, now)
