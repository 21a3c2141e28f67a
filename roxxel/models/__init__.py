"""Language models in Flax NNX."""
