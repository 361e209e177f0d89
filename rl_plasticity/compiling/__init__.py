"""Compiled updates, and the arithmetic of their matrix products."""
