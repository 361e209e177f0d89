"""Networks as other people write them, each with what has to be read of it."""

from foreign.adapters import ADAPTERS
from foreign.agents import AGENTS
from foreign.attention import ATTENTION
from foreign.expected import Expected
from foreign.first import FIRST, HAS_TRANSFORMERS
from foreign.language import LANGUAGE
from foreign.recurrent import RECURRENT

FOREIGN: dict[str, Expected] = {**FIRST, **AGENTS, **LANGUAGE, **ADAPTERS, **RECURRENT, **ATTENTION}

__all__ = ["FOREIGN", "HAS_TRANSFORMERS", "Expected"]
