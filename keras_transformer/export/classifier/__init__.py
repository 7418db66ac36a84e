"""Shipping a classifier: text to label and probabilities, as a SavedModel or for LiteRT."""
