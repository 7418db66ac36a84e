"""Imports Keras quietly when it is imported: the first line of packages that are made of Keras."""

from keras_transformer.quiet import import_keras

import_keras()
