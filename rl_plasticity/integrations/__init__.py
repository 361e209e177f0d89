"""Regularizers in other libraries' loops: one module for each, imported, and its library needed, only by name."""
