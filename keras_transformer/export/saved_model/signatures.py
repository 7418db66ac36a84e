"""The signatures of an export: each a TensorFlow function over a few compiled ones."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from keras import ops

from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.results import NEG_INF, score_of
from keras_transformer.decoding.search import score_targets, search
from keras_transformer.engine.engine import search_of
from keras_transformer.engine.inputs import length_buckets
from keras_transformer.engine.model_engine import ClassifierEngine, label_probabilities
from keras_transformer.engine.saved_model import INPUTS
from keras_transformer.engine.translation import CONTINUATION
from keras_transformer.export.saved_model.batches import (
    chunk_rows,
    in_chunks,
    is_blank,
    labelled,
    largest_chunk,
    last_turns,
    longest_first,
    pad_ids,
    pad_rows,
    widen,
)
from keras_transformer.ids import EOS_ID, PAD_ID, UNK_ID
from keras_transformer.layers import masks
from keras_transformer.text import Tokenizer
from keras_transformer.text.graph import GraphTokenizer


class CompiledSearches:
    """Functions that XLA compiles in an export, each traced once, at its first use, for all shapes.

    Searches take ids, int32 `(rows, source)`. They return ids, int32 `(rows, hypotheses, target)`,
    scores and log-probabilities, float32 `(rows, hypotheses)`. A language model's searches also
    return log-probabilities and lengths of the continuations.
    """

    def __init__(self, engine, search):
        self._engine, self._model = engine, engine.model
        self._beam_size = search.get("beam_size", 1)
        # An engine whose translations may have any length has no such option in `search`.
        ratio = {"max_length_ratio": engine.max_length_ratio}
        self._options = {**ratio, **search_of(search), "max_length": engine.max_target_length}
        self._reads_sources = engine.reads_sources

    def _search(self, source_ids, **options):
        if not self._reads_sources:
            options["prefixes"] = without_end(source_ids)
        hypotheses = search(
            self._model,
            source_ids,
            # A search has a loop for each capacity: the graph holds their body once.
            wrap_body=functools.partial(tf.function, autograph=False),
            **{**self._options, **options},
        )
        results = hypotheses.ids, hypotheses.scores, hypotheses.log_probabilities
        following = hypotheses.continuation_log_probabilities, hypotheses.continuation_lengths
        return results if self._reads_sources else results + following

    @functools.cached_property
    def beam(self):
        """Beam search; returns all hypotheses."""
        if self._beam_size == 1:
            return self.greedy
        beams = dict(beam_size=self._beam_size, n_best=self._beam_size)
        return with_xla(lambda ids: self._search(ids, **beams), ("int32", 2))

    @functools.cached_property
    def greedy(self):
        """Greedy search."""
        return with_xla(lambda ids: self._search(ids, beam_size=1), ("int32", 2))

    @functools.cached_property
    def sample(self):
        """Sampling; also takes seed, temperature, top-k and top-p of each sentence."""

        def sample(ids, seed, temperature, top_k, top_p):
            options = dict(seeds=seed, temperature=temperature, top_k=top_k, top_p=top_p)
            return self._search(ids, sampling=True, **options)

        option_types = (("int32", 1), ("float32", 1), ("int32", 1), ("float32", 1))
        return with_xla(sample, ("int32", 2), *option_types)

    @functools.cached_property
    def score(self):
        """Scoring: from source and target ids to log-probabilities and scores, float32 `(rows,)`.

        A language model's target begins with its source, which is not counted.
        """
        options = DecodingOptions(**self._options)

        def score(source_ids, target_ids):
            by_token, _ = score_targets(self._model, source_ids, target_ids)
            counted = masks.padding_mask(target_ids)
            if not self._reads_sources:
                prefix_mask = ops.cast(masks.padding_mask(without_end(source_ids)), "int32")
                prefix_lengths = ops.sum(prefix_mask, axis=1, keepdims=True)  # --> [rows, 1]
                positions = ops.arange(ops.shape(target_ids)[1], dtype="int32")
                counted = counted & (positions >= prefix_lengths)
            log_probability = ops.sum(ops.where(counted, by_token, 0.0), axis=1)
            lengths = ops.sum(ops.cast(counted, "int32"), axis=1)
            names = "length_penalty", "length_normalization", "word_penalty"
            ranking = (getattr(options, name) for name in names)
            return log_probability, score_of(log_probability, lengths, *ranking)

        return with_xla(score, ("int32", 2), ("int32", 2))

    @functools.cached_property
    def align(self):
        """Alignment: from source and target ids to float32 `(rows, target, source)`."""

        def align(source_ids, target_ids):
            _, alignment = score_targets(self._model, source_ids, target_ids)
            is_token = ops.expand_dims(masks.padding_mask(target_ids), 2)
            return ops.where(is_token, alignment, 0.0)

        return with_xla(align, ("int32", 2), ("int32", 2))


def without_end(ids):
    """Replaces EOS by padding in ids, int32 `(rows, tokens)`."""
    return ops.where(ops.equal(ids, EOS_ID), PAD_ID, ids)


def with_xla(function, *inputs):
    """Returns a function that XLA compiles; `inputs` are its types and numbers of axes."""
    specs = [tf.TensorSpec((None,) * axes, dtype) for dtype, axes in inputs]
    return tf.function(function, specs, jit_compile=True, autograph=False)


class Signatures:
    """Traces signatures of a model.

    Any number of texts are tokenized, sorted by length, divided into chunks, and padded to few
    shapes. XLA compiles a function for each shape. `serving_default`, `beam`, `align` and
    `serving_ids` share the compiled functions of one search. A blank text, of white space or
    without tokens, gets "" and 0. A text of too many tokens is truncated; a conversation loses its
    oldest turns.
    """

    def __init__(self, engine: Any, search: Mapping[str, Any]):
        self._engine, self._beam_size = engine, search.get("beam_size", 1)
        self._width = engine.max_target_length
        self._reads_sources = engine.reads_sources
        # In the order in which compiled searches return the numbers of a hypothesis.
        following = () if self._reads_sources else CONTINUATION
        self._number_names = ["score", "log_probability", *following]
        self._output_names = ["translation", *self._number_names]
        # A classifier needs no search.
        self._compiled = CompiledSearches(engine, search) if engine.labels is None else None
        self._chunk_size = largest_chunk(engine, self._beam_size)
        self._rows = chunk_rows(self._chunk_size)
        self._source_lengths = length_buckets(engine.max_source_length)
        self._target_lengths = length_buckets(engine.max_target_length)
        sides = {"source": engine.source_tokenizer, "target": engine.target_tokenizer}
        # A classifier's target side is `Labels`, which have no tokenizer in the graph.
        tokenizers = {
            name: tokenizer for name, tokenizer in sides.items() if isinstance(tokenizer, Tokenizer)
        }
        in_graph = {name: GraphTokenizer(tokenizer) for name, tokenizer in tokenizers.items()}
        text, ids = tf.TensorSpec((None,), tf.string), tf.TensorSpec((None, None), tf.int32)
        # Separate functions, so that the graph holds the tokenizer's model once.
        self._tokenize = {
            name: tf.function(tokenizer.tokenize, [text], autograph=False)
            for name, tokenizer in in_graph.items()
        }
        if "target" in in_graph:
            self._detokenize = tf.function(in_graph["target"].detokenize, [ids], autograph=False)

    def concrete(self, name):
        """Traces the concrete function of one of `SIGNATURES`, which returns a dict of tensors."""
        specs = [
            tf.TensorSpec((None,) * axes, dtype, name=argument)
            for argument, (dtype, axes) in INPUTS[name].items()
        ]
        function = getattr(self, f"_{name}")
        return tf.function(function, specs, autograph=False).get_concrete_function()

    # The signatures.

    def _serving_default(self, text):
        outputs = self._best(text, self._compiled.beam)
        return {name: outputs[name] for name in ("translation", "score")}

    def _greedy(self, text):
        return self._best(text, self._compiled.greedy)

    def _beam(self, text):
        outputs = self._translate(text, self._compiled.beam, self._beam_size)
        return {name: outputs[name] for name in self._output_names}

    def _sample(self, text, seed, temperature, top_k, top_p):
        names = ("seed", "temperature", "top_k", "top_p")
        for name, values in zip(names, (seed, temperature, top_k, top_p), strict=True):
            message = f"`{name}` must have a value for each text."
            tf.debugging.assert_equal(tf.size(values), tf.size(text), message)
        # Values out of range and NaN become the nearest allowed value; 0 is greedy search.
        temperature = tf.where(temperature > 1e-6, temperature, 1e-6)
        top_p = tf.where(top_p < 1.0, tf.maximum(top_p, 1e-9), 1.0)
        return self._best(text, self._compiled.sample, (seed, temperature, top_k, top_p))

    def _score(self, source, target):
        message = "There must be a target for each source."
        tf.debugging.assert_equal(tf.size(source), tf.size(target), message)
        sources, targets = self._ids(source, "source"), self._ids(target, "target")
        if not self._reads_sources:
            sequences = tf.concat([sources[:, :-1], targets[:, :-1]], axis=1)
            targets = self._ended(sequences, self._width)
        lengths = tf.maximum(sources.row_lengths(), targets.row_lengths())

        def call(indices):
            log_probability, score = self._compiled.score(
                pad_ids(sources, indices, self._rows, self._source_lengths),
                pad_ids(targets, indices, self._rows, self._target_lengths),
            )
            count = tf.size(indices)
            return {"log_probability": log_probability[:count], "score": score[:count]}

        nothing = tf.zeros(tf.shape(source))
        indices = longest_first(tf.fill(tf.shape(source), True), lengths)
        results = {"log_probability": nothing, "score": nothing}
        return in_chunks(indices, call, results, self._chunk_size)

    def _align(self, text):
        ids = self._ids(text, "source")
        source_ids = tf.where(
            self._not_blank(text, ids)[:, None], ids.to_tensor(default_value=PAD_ID), PAD_ID
        )
        source_ids = _trimmed(source_ids)
        longest = tf.shape(source_ids)[1]

        def attend(padded_ids, target_ids, count):
            alignment = self._compiled.align(padded_ids, target_ids)[:count]
            alignment = widen(widen(alignment, longest, axis=2), self._width, axis=1)
            return {"alignment": alignment}

        nothing = {"alignment": tf.zeros([tf.size(text), self._width, longest])}
        outputs = self._translate(text, self._compiled.beam, 1, further=(attend, nothing))
        target_ids = _trimmed(outputs["ids"][:, 0])
        return {
            **{name: outputs[name][:, 0] for name in self._output_names},
            "source_tokens": _tokens(self._engine.source_tokenizer, source_ids),
            "target_tokens": _tokens(self._engine.target_tokenizer, target_ids),
            "alignment": outputs["alignment"][:, : tf.shape(target_ids)[1]],
        }

    def _serving_ids(self, source_ids):
        vocabulary_size = self._engine.source_tokenizer.vocabulary_size
        is_known = (source_ids >= PAD_ID) & (source_ids < vocabulary_size)
        source_ids = tf.where(is_known, source_ids, UNK_ID)
        ids = tf.ragged.boolean_mask(source_ids, source_ids != PAD_ID)
        longest = self._engine.max_source_length
        if self._engine.turns:
            ids = last_turns(ids, longest, self._engine.source_tokenizer.turn_id)
        lengths = ids.row_lengths()
        ends = tf.fill([tf.size(lengths), 1], EOS_ID)
        truncated = tf.concat([ids[:, : longest - 1], ends], axis=1)
        versions = tf.ragged.stack([ids[:, :longest], truncated], axis=1)
        # Rows that fit stay unchanged, whether they have an end or not.
        ids = tf.gather(versions, tf.where(lengths <= longest, 0, 1), batch_dims=1)
        # A row with only the end is a blank text, as an empty row is.
        has_tokens = tf.reduce_any((source_ids != PAD_ID) & (source_ids != EOS_ID), axis=1)
        outputs = self._search_in_chunks(ids, has_tokens, self._compiled.beam, 1)
        return {"ids": _trimmed(outputs["ids"][:, 0]), "score": outputs["score"][:, 0]}

    # Parts that signatures share.

    def _ids(self, text, side):
        """Returns ragged ids of each text, truncated as in the engine; the last id is EOS."""
        engine = self._engine
        longest = engine.max_source_length if side == "source" else engine.max_target_length
        if side == "source" and engine.turns and engine.turns.max_turns:
            separator = f" {engine.turns.separator} "
            turns = tf.strings.split(text, separator)[:, -engine.turns.max_turns :]
            text = tf.strings.reduce_join(turns, axis=1, separator=separator)
        ids = self._tokenize[side](text)
        if side == "source" and engine.turns:
            ids = last_turns(ids, longest - 1, engine.source_tokenizer.turn_id)
        return self._ended(ids, longest)

    def _ended(self, ids, longest):
        """Truncates ragged ids without EOS, and appends EOS."""
        ids = ids[:, : longest - 1]
        return tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1)

    def _not_blank(self, text, ids):
        """Returns bool `(batch,)`: True for texts with more than spaces, a tag and EOS."""
        other_ids = [EOS_ID, *self._engine.source_tokenizer.tag_ids]
        is_of_text = tf.reduce_all(tf.not_equal(ids.values[:, None], other_ids), axis=1)
        return tf.reduce_any(ids.with_values(is_of_text), axis=1) & ~is_blank(text)

    def _best(self, text, compiled, values=()):
        outputs = self._translate(text, compiled, 1, values)
        return {name: outputs[name][:, 0] for name in self._output_names}

    def _translate(self, text, compiled, n_best, values=(), further=None):
        """Calls `_search_in_chunks` for texts, and adds the texts of the hypotheses."""
        ids = self._ids(text, "source")
        outputs = self._search_in_chunks(
            ids, self._not_blank(text, ids), compiled, n_best, values, further
        )
        texts = self._detokenize(tf.reshape(outputs["ids"], [-1, self._width]))
        return {**outputs, "translation": tf.reshape(texts, [-1, n_best])}

    def _search_in_chunks(self, ids, searched, compiled, n_best, values=(), further=None):
        """Returns ids and numbers of the hypotheses of any number of sentences.

        Args:
            ids: Ragged int32 `(batch, (source))`.
            searched: Bool `(batch,)`; False for sentences that get empty results.
            compiled: Function from padded ids and values to ids and numbers.
            n_best: Number of hypotheses per sentence.
            values: Further arguments of `compiled`, one tensor `(batch,)` per argument.
            further: A function and initial values for further results. The function computes the
                results of a chunk from its padded source ids, its padded target ids and its number
                of sentences. The initial values are for the whole batch.
        """
        further_outputs, further_results = further or (lambda *_: {}, {})

        def call(indices):
            source_ids = pad_ids(ids, indices, self._rows, self._source_lengths)
            padded_options = (pad_rows(option, indices, self._rows) for option in values)
            target_ids, *numbers = compiled(source_ids, *padded_options)
            count = tf.size(indices)
            numbers = [number[:count, :n_best] for number in numbers]
            # Where a sentence has fewer hypotheses than `n_best`, the last places are empty.
            is_missing = numbers[0] < NEG_INF / 2
            hypotheses = tf.where(is_missing[:, :, None], PAD_ID, target_ids[:count, :n_best])
            return {
                "ids": widen(hypotheses, self._width, axis=2),
                **{
                    name: tf.where(is_missing, -math.inf, number)
                    if number.dtype.is_floating
                    else number
                    for name, number in zip(self._number_names, numbers, strict=True)
                },
                **further_outputs(source_ids, target_ids[:, 0], count),
            }

        batch = tf.size(searched)
        nothing = tf.tile([[0.0] + [-math.inf] * (n_best - 1)], [batch, 1])
        results = {
            "ids": tf.zeros([batch, n_best, self._width], tf.int32),
            **dict.fromkeys(self._number_names, nothing),
            **further_results,
        }
        if not self._reads_sources:
            results["continuation_length"] = tf.zeros([batch, n_best], tf.int32)
        indices = longest_first(searched, ids.row_lengths())
        return in_chunks(indices, call, results, self._chunk_size)


class LabelSignature(Signatures):
    """Signature of a classifier's SavedModel, with the tokenizer and the compiled model inside."""

    def __init__(self, engine: ClassifierEngine):
        super().__init__(engine, {})  # without a search
        self._run = with_xla(lambda ids: label_probabilities(engine.model, ids), ("int32", 2))

    def _serving_default(self, text):
        ids, labels = self._ids(text, "source"), self._engine.labels
        present = self._not_blank(text, ids)

        def call(indices):
            probabilities = self._run(pad_ids(ids, indices, self._rows, self._source_lengths))
            return {"probabilities": probabilities[: tf.size(indices)]}

        nothing = {"probabilities": tf.zeros([tf.size(text), len(labels)])}
        indices = longest_first(present, ids.row_lengths())
        outputs = in_chunks(indices, call, nothing, self._chunk_size)
        return labelled(labels, outputs["probabilities"], present)


def _trimmed(ids):
    """Removes the columns that are padding in all rows."""
    is_used = tf.reduce_any(ids != PAD_ID, axis=0)
    return ids[:, : tf.reduce_sum(tf.cast(is_used, tf.int32))]


def _tokens(tokenizer, ids):
    """Returns the tokens of ids as strings, "" for padding."""
    pieces = tokenizer.pieces_of(range(tokenizer.vocabulary_size))
    pieces[PAD_ID] = ""
    return tf.gather(tf.constant(pieces), ids)
