"""Networks as other people write them, each with what has to be read of it."""

from foreign.adapters import ADAPTERS
from foreign.agents import AGENTS
from foreign.expected import Expected
from foreign.graphs import GRAPHS
from foreign.language import LANGUAGE
from foreign.oddities import ODDITIES
from foreign.sequences import SEQUENCES
from foreign.vision import VISION

FAMILIES: dict[str, dict[str, Expected]] = {
    "Sequences": SEQUENCES,
    "Vision": VISION,
    "Graphs": GRAPHS,
    "Language": LANGUAGE,
    "Adapters": ADAPTERS,
    "Agents": AGENTS,
    "Oddities": ODDITIES,
}
FOREIGN = {name: expected for family in FAMILIES.values() for name, expected in family.items()}

__all__ = ["FAMILIES", "FOREIGN", "Expected"]
