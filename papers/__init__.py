"""The papers' figures and tables, made with the public API of `rl_plasticity`: ``python -m papers``."""
