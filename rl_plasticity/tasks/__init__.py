"""Supervised continual learning: data sets, and sequences of tasks made of them."""

from rl_plasticity.tasks.data import DATA_SETS, Data, load
from rl_plasticity.tasks.formats import DataError

__all__ = ["DATA_SETS", "Data", "DataError", "load"]
