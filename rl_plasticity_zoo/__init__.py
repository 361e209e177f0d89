"""Agents of later papers, large networks and rare optimizers: a plug that is installed beside `rl_plasticity`."""
