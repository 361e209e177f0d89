from rl_plasticity.configs import before, kinds, schema, written
from rl_plasticity.configs.commands import Supervised, Train
from rl_plasticity.settings import settings_of


def load(arguments):
    return schema.load(Train, arguments)


def test_settings_that_an_earlier_version_saved_are_read_as_what_it_did():
    saved = {**vars(load(["reset=periodic"]))}
    saved["reset"] = {**saved["reset"], "every_tasks": None}
    saved["agent"] = {n: v for n, v in saved["agent"].items() if n not in ("init", "log_std", "temperature_loss")}
    assert schema.load_saved(Train, saved) == load(["reset=periodic"])
    assert schema.without_machine(Train, saved) == schema.without_machine(Train, vars(load(["reset=periodic"])))


def test_a_run_from_before_there_were_closer_looks_was_not_looked_at_closely():
    now = schema.load(Supervised, [])
    new = ("measure_every_epochs", "measure_tasks", "measure_steps", "measure_channels", "measure_span_images")
    saved = {name: value for name, value in vars(now).items() if name not in new}
    assert schema.load_saved(Supervised, saved) == now
    assert schema.without_machine(Supervised, saved) == schema.without_machine(Supervised, vars(now))


def test_a_regularizer_that_an_earlier_version_saved_has_no_window_and_acts_on_all_parameters():
    new = ("from_update", "until_update", "from_epoch", "until_epoch", "of", "rect_scale")

    def without(tree):
        return {n: without(v) if isinstance(v, dict) else v for n, v in tree.items() if n not in new}

    for kind in (Train, Supervised):
        for reg in ("l2", "spectral+weight_decay", "orthogonal", ["none", "wrs", "swr+l2"]):
            now = schema.load(kind, written.from_python({"reg": reg}))
            saved = {**vars(now), "reg": without(now.reg)}
            assert saved["reg"] != now.reg
            assert schema.load_saved(kind, saved) == now
            assert schema.without_machine(kind, saved) == schema.without_machine(kind, vars(now))


def test_a_network_s_settings_that_an_earlier_run_did_not_have_are_what_it_was():
    for choice, settings in before.BEFORE.items():
        group, _, name = choice.partition("=")
        if not name:  # settings of a command
            continue
        declared = settings_of(kinds.KINDS[group].choices[name])
        values = before.up_to_date({f"{group}.name": name})
        for key, value in settings.items():
            default = declared[key.partition(".")[2]].default
            assert value == values[key] == (list(default) if isinstance(default, tuple) else default), key
