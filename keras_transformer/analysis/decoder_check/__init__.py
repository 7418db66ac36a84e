"""Checks of any Keras decoder: what its outputs may depend on, and what they must not."""
