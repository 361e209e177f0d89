"""What the settings that an earlier version saved are now."""

from collections.abc import Mapping
from typing import Any

from rl_plasticity.configs.kinds import KINDS

# What earlier versions did that did not have a setting, by the choice, or the group of the command, that has it.
_CNN = {"net.channels": 16, "net.widths": [100], "net.padding": True, "net.init": "orthogonal"}
BEFORE: dict[str, dict[str, Any]] = {
    "agent=sac": {
        "agent.init": "orthogonal",
        "agent.temperature_loss": "alpha",
        "agent.log_std": "clamp",
        "agent.activation": "relu",
        "agent.network": "mlp",
        "agent.actor_width": 128,
        "agent.actor_blocks": 1,
        "agent.critic_width": 512,
        "agent.critic_blocks": 2,
        "agent.normalize_obs": None,
    },
    "net=mlp": {"net.init": "orthogonal"},
    "net=cnn": _CNN,
    "net=cnn_bn": _CNN,
    "net=vgg16": {"net.hidden_layers": 2, "net.activation": "relu"},
    "net=vgg16_bn": {"net.hidden_layers": 2, "net.activation": "relu"},
    "net=resnet18": {"net.norm": "batch", "net.activation": "relu"},
    "net=wrn28_10": {"net.norm_after_every_conv": False, "net.activation": "relu"},
    "net=vit_tiny": {"net.activation": "gelu"},
    "env": {
        "precision": "float32",
        "bfloat16_from": None,
        "overlap": False,
        "prime_updates": 0,
        "prime_after_env_steps": 100,
        "on_change": "keep",
        "env.sequence": [],
        "env.switch_every_env_steps": None,
        "env.changes": [],
        "env.shift_std": 1.0,
        "env.dynamics_factor": 2.0,
    },
    "task": {
        "precision": "float32",
        "bfloat16_from": None,
        "data.validation_from": "test",
        "measure_every_epochs": None,
        "measure_tasks": False,
        "measure_steps": False,
        "measure_channels": None,
        "measure_span_images": 0,
    },
}


def up_to_date(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings that an earlier version may have saved, with the settings that there are now."""
    values = dict(saved)
    for choice, settings in BEFORE.items():
        group, _, name = choice.partition("=")
        chosen = values.get(f"{group}.name")
        values = settings | values if chosen is not None and name in ("", chosen) else values
    unit = "update" if "env.name" in values else "epoch"
    window: dict[str, Any] = {f"from_{unit}": 0, f"until_{unit}": None}
    for name, choice in saved.items():
        if not name.endswith(".name"):
            continue
        since: dict[str, Any] = {}
        if name.startswith("reg.") and choice in KINDS["reg"].names and choice != "none":
            since = window | ({"of": "all"} if choice in ("l2", "weight_decay") else {})
            since |= {"rect_scale": False} if choice == "orthogonal" else {}
        if name.startswith("reset.") and choice in KINDS["reset"].names:  # reinforcement learning had no tasks
            since = {n: None for n in KINDS["reset"].settings(choice) if n == "every_tasks"}
        for setting, value in since.items():  # behind the others: the order of a chain's parts is its own
            values.setdefault(f"{name.removesuffix('name')}{setting}", value)
    return values
