"""Plugins that add one additional measurement each to a run: ``plugins=[papers.looks.tasks]``."""
