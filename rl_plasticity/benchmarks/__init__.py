"""Fixed suites of tasks on which plasticity is lost, and the published methods' scores on them."""
