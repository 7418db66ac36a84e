"""A corpus of any size, translated by Ray Data (extra `serve`)."""

from keras_transformer.bulk.translate import translate_corpus

__all__ = ["translate_corpus"]
