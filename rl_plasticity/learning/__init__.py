"""One update of a network: learners, optimizers, and `attach` for a training loop of your own."""
