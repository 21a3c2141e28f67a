"""The training loop: step, trainer, evaluation, timing."""
