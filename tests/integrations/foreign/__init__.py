"""Networks as other people write them, each with what has to be read of it."""

from foreign.agents import AGENTS
from foreign.expected import Expected
from foreign.first import FIRST, HAS_TRANSFORMERS

FOREIGN: dict[str, Expected] = {**FIRST, **AGENTS}

__all__ = ["FOREIGN", "HAS_TRANSFORMERS", "Expected"]
