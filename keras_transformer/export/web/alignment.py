"""Alignments of a translation as a LiteRT signature, and their verification."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID
from keras_transformer.decoding import ModelEngine
from keras_transformer.decoding.search import score_targets
from keras_transformer.errors import VerificationError
from keras_transformer.export.litert.engine import IDS_FILE
from keras_transformer.export.litert.model import (
    HIDDEN,
    attention_scores,
    decoder_block,
    embed_sequences,
    encode,
    normalize,
    position_table,
    self_attend,
    within_window,
)
from keras_transformer.export.texts import fitting_texts
from keras_transformer.inputs import pad

# Sum of a row's differences, mean and largest: a row's weights sum to 1, so that another row
# differs by up to 2, however long it is. Int8 moves 0.0003 a weight of Multi30k's run, in rows of
# about 16.
_MOST = {"none": (1e-3, 1e-2), "float16": (1e-2, 1e-1), "int8": (5e-2, 1.0)}


class LiteRTAlignment:
    """One pass over a source and its translation, as `decoding.search.score_targets` makes it.

    Args:
        model: `Transformer` with float32 weights.
        most: The most tokens of a source and a translation of any signature in the file.
    """

    def __init__(self, model, most: int):
        self.model = model
        self.source_positions = position_table(model, model.source_positions, most)
        self.target_positions = position_table(model, model.target_positions, most)

    def __call__(self, source_ids, target_ids):
        """Int32 `(batch, source)` and `(batch, target)`, the ends included, padded with 0.

        Gives `alignment`, `(batch, target, source)`: the mean of the last layer's heads.
        """
        model = self.model
        source, source_bias = encode(model, source_ids, self.source_positions)
        steps = target_ids.shape[1]
        begin = tf.minimum(target_ids[:, :1], 0) + BOS_ID
        read = tf.concat([begin, target_ids[:, :-1]], axis=1)
        rows = embed_sequences(model.target_embedding, read, self.target_positions)
        later = np.triu(np.full((1, 1, steps, steps), HIDDEN, "float32"), 1)
        later = within_window(model.config, later, tf.range(steps), tf.range(steps))
        *blocks, last = zip(model.decoder.blocks, source, strict=True)
        for block, crossed in blocks:
            rows = decoder_block(
                block, rows, steps, lambda own: [own], [later], crossed, source_bias
            )
        block, (keys, _) = last
        rows = self_attend(block, rows, steps, lambda own: [own], [later])
        rows = normalize(block.cross_attention_norm, rows) if block.normalize_first else rows
        (scores,) = attention_scores(block.cross_attention, rows, steps, [keys], [source_bias])
        return {"alignment": tf.reduce_mean(tf.nn.softmax(scores), axis=1)}


def verify_alignment(
    folder: Path, engine: ModelEngine, manifest: dict, texts: Sequence[str]
) -> dict:
    """Compares each signature with the live model on a few texts; raises as others do."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / IDS_FILE))
    report, most = {}, _MOST[manifest["quantize"]]
    for columns, steps in manifest["align_lengths"].items():
        chosen = fitting_texts(texts, engine.source_tokenizer, columns, 4)[1:]
        sources = engine.source_tokenizer.tokenize(chosen, add_eos=True)
        # Any target will do: the texts themselves.
        targets = engine.target_tokenizer.tokenize(chosen, add_eos=True)
        align, differences = interpreter.get_signature_runner(f"align_1x{columns}"), []
        for source, target in zip(sources, targets, strict=True):
            ids = [pad([source], 1, columns), pad([target[:steps]], 1, steps)]
            found = align(source_ids=ids[0], target_ids=ids[1])["alignment"]
            expected = np.asarray(score_targets(engine.model, *ids)[1])
            real = np.s_[0, : len(target), : len(source)]
            differences += np.abs(found - expected)[real].sum(axis=1).tolist()  # of each row
        sizes = [float(each(differences or [0.0])) for each in (np.mean, np.max)]
        if not (sizes[0] <= most[0] and sizes[1] <= most[1]):
            raise VerificationError(
                f"align_1x{columns}: a token's weights may differ from the live model's by "
                f"{most[0]} in all on average, and by {most[1]} at most. "
                f"Received: {sizes[0]:.6f} and {sizes[1]:.6f}."
            )
        names = "texts", "mean_difference", "largest_difference"
        report[f"align_1x{columns}"] = dict(zip(names, (len(chosen), *sizes), strict=True))
    return report
