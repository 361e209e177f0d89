"""The figures and tables of the papers, on what `rl_plasticity` offers to everybody: ``python -m papers``."""
