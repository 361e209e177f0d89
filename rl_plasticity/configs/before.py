"""What the settings that version 0.2.0 saved are now."""

from collections.abc import Mapping
from typing import Any

# What it did that did not have a setting then, by the group and the choice that have it now.
SINCE: dict[tuple[str, Any], tuple[str, Any]] = {
    ("agent", "sac"): ("log_std", "clamp"),
    ("reg", "orthogonal"): ("rect_scale", False),
}
# Settings that decided what was written down, and that papers/closer_look.py does now.
GONE = {"measure_tasks", "measure_steps", "measure_channels", "measure_span_images"}


def up_to_date(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings that version 0.2.0 may have saved, as the settings that there are now."""
    values = {name: value for name, value in saved.items() if name not in GONE}
    for name, choice in saved.items():
        if name.endswith(".name") and (new := SINCE.get((name.partition(".")[0], choice))):
            values.setdefault(f"{name.removesuffix('name')}{new[0]}", new[1])
    return values
