"""One run's folder and life."""
