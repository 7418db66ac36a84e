"""Text from one stream, translations to another, line for line: what the command line runs."""

from keras_transformer.streaming.forms import FORMS
from keras_transformer.streaming.growth import stream_translations
from keras_transformer.streaming.progress import Progress
from keras_transformer.streaming.score import score_lines
from keras_transformer.streaming.translate import translate_lines

__all__ = ["FORMS", "Progress", "score_lines", "stream_translations", "translate_lines"]
