"""A corpus of any size, translated over a Ray cluster (extra `serve`).

`translate.py` cuts files into chunks and puts the translated ones together, `workers.py` has actors
translate them.
"""

from keras_transformer.bulk.translate import translate_corpus

__all__ = ["translate_corpus"]
