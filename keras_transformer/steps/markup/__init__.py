"""Markup of a text: removed from the source, and put back into the translation."""

from keras_transformer.steps.markup.protecting import (
    Protected,
    count_blocks,
    protect,
)
from keras_transformer.steps.markup.restoring import restore

__all__ = ["Protected", "count_blocks", "protect", "restore"]
