"""The choices of each group, and the settings of each choice, as the constructors declare them."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

from rl_plasticity.settings import Declared, Setting, settings_of


class Kind(NamedTuple):
    """A group's choices. A thing of this package is written ``module:NAME``.

    Args:
        home: the public dict; empty if there is none.
        default: the default choice.
        common: functions whose settings every choice but `none` has besides its own.
        given: arguments of constructors that are no settings, because the command passes them.
        inner: a setting that chooses from a second public dict, and that dict. The settings of the inner choice
            belong to the outer one too.
    """

    home: str
    default: str
    common: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    inner: tuple[str, str] = ("", "")

    @property
    def choices(self) -> Mapping[str, Callable[..., Any]]:
        """The public dict."""
        return _imported(self.home) if self.home else {}

    def settings(self, choice: str, inner: Any = None) -> dict[str, Declared]:
        """The settings of a choice, with those of its inner choice: `inner`, or the default one."""
        own = settings_of(self.choices[choice]) if choice in self.choices else {}
        for one in self.common if choice != "none" else ():
            own |= settings_of(_imported(one))
        name, home = self.inner
        if name in own:
            makers = _imported(home)
            own[name] = own[name]._replace(kinds=((*makers,),))
            inner = own[name].default if inner is None else inner
            own |= settings_of(makers[inner]) if inner in makers else {}
        return {name: one for name, one in own.items() if name not in self.given}


def window_in_epochs(
    updates_after: Callable[[int], int],
    from_epoch: Annotated[int, Setting("epochs of the whole run before the method begins", least=0)] = 0,
    until_epoch: Annotated[
        int | None, Setting("end of the method, counted like its beginning; null: never", least=1)
    ] = None,
) -> dict[str, int | None]:
    """Convert a regularizer's window from epochs to updates, for `Windowed`.

    Args:
        updates_after: from a number of epochs of the whole run to the number of updates in them.

    Raises:
        SettingsError: it ends before it begins.
    """
    from rl_plasticity.regularizers import require_window

    require_window("epoch", from_epoch, until_epoch)
    until_update = None if until_epoch is None else updates_after(until_epoch)
    return {"from_update": updates_after(from_epoch), "until_update": until_update}


KINDS: dict[str, Kind] = {
    "env": Kind("", "cheetah-run", ("envs:Envs",), ("render", "change_seeds")),
    "reg": Kind("regularizers:REGULARIZERS", "none", ("regularizers:Windowed", "configs.kinds:window_in_epochs")),
    "reset": Kind("interventions:INTERVENTIONS", "none"),
    "agent": Kind("agents:AGENTS", "sac", (), ("regularize", "device"), ("network", "agents:AGENT_NETWORKS")),
    "task": Kind("tasks:TASKS", "random_labels", given=("num_tasks",)),
    "data": Kind("tasks:DATA", "digits", ("tasks:load",)),
    "net": Kind("networks:NETWORKS", "mlp", ("networks:make_network",)),
    "optimizer": Kind("learning.optimizers:OPTIMIZERS", "adam", given=("lr",)),
}


def _imported(place: str) -> Any:
    """The object that ``module:NAME`` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"rl_plasticity.{module}"), name)
