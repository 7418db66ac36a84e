"""The signatures of an export: each a TensorFlow function over a few compiled ones."""

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from keras import ops

from keras_transformer.base.ids import EOS_ID, PAD_ID
from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding.search import score_targets, search
from keras_transformer.decoding.search_options import (
    FILTERS,
    DecodingOptions,
    exported_search_options,
)
from keras_transformer.engine.translation import CONTINUATION
from keras_transformer.export.saved_model.batches import (
    ChunkShapes,
    in_chunks,
    is_blank,
    labelled,
    last_turns,
    longest_first,
    pad_rows,
    widen,
)
from keras_transformer.export.saved_model.graph_tokenizer import GraphTokenizer
from keras_transformer.export.saved_model.languages import GraphLanguages
from keras_transformer.export.signature import (
    LABEL_SIGNATURES,
    SAMPLING_INPUTS,
    SIGNATURES,
    TEXT,
    Signature,
)
from keras_transformer.layers import masks
from keras_transformer.text import Tokenizer

if TYPE_CHECKING:
    from keras_transformer.engine.classifier_engine import ClassifierEngine
    from keras_transformer.engine.model_engine import ModelEngine


class CompiledSearches:
    """Functions that XLA compiles in an export, each traced once, at its first use, for all shapes.

    Searches take ids, int32 `(rows, source)`, and a dict of inputs, which have a value for each
    row: `forced_ids` of a model of several languages, and for `sample` also `SAMPLING_INPUTS`. They
    return a dict: ids, int32 `(rows, hypotheses, target)`, scores and log-probabilities, float32
    `(rows, hypotheses)`. A language model's searches also return log-probabilities and lengths of
    the continuations.
    """

    def __init__(self, engine, search_options):
        self._engine, self._model = engine, engine.model
        self._beam_size = search_options.get("beam_size", 1)
        self._options = {
            # An engine whose translations may have any length has no such option.
            "max_length_ratio": engine.max_length_ratio,
            **exported_search_options(search_options),
            "max_length": engine.max_target_length,
        }
        self._reads_sources = engine.reads_sources
        self._inputs = {"forced_ids": spec("int32", 1)} if engine.has_target_prefix else {}

    def _beam_search(self, beam_size):
        """Returns the compiled beam search that gives all hypotheses."""

        def search(ids, inputs):
            return self._search(ids, beam_size=beam_size, n_best=beam_size, **inputs)

        return with_xla(search, spec("int32", 2), self._inputs)

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
        outputs = {
            "ids": hypotheses.ids,
            "score": hypotheses.scores,
            "log_probability": hypotheses.log_probabilities,
        }
        if not self._reads_sources:
            outputs["continuation_log_probability"] = hypotheses.continuation_log_probabilities
            outputs["continuation_length"] = hypotheses.continuation_lengths
        return outputs

    @functools.cached_property
    def beam(self):
        """Beam search; returns all hypotheses."""
        if self._beam_size == 1:
            return self.greedy
        return self._beam_search(self._beam_size)

    @functools.cached_property
    def greedy(self):
        """Greedy search."""
        return self._beam_search(1)

    @functools.cached_property
    def sample(self):
        """Sampling."""

        def sample(ids, inputs):
            options = {name: inputs[name] for name in (*FILTERS, *self._inputs)}
            return self._search(ids, sampling=True, seeds=inputs["seed"], **options)

        inputs = {name: spec(tensor.dtype, 1) for name, tensor in SAMPLING_INPUTS.items()}
        return with_xla(sample, spec("int32", 2), inputs | self._inputs)

    @functools.cached_property
    def score(self):
        """Scoring: from source and target ids to log-probabilities and scores, float32 `(rows,)`.

        A language model's target begins with its source, which is not counted, and a target may
        begin with a forced token.
        """
        ranking = DecodingOptions(**self._options).ranking

        def score(source_ids, target_ids):
            by_token, _ = score_targets(self._model, source_ids, target_ids)
            counted = masks.padding_mask(target_ids)
            if not self._reads_sources:
                prefix_mask = ops.cast(masks.padding_mask(without_end(source_ids)), "int32")
                prefix_lengths = ops.sum(prefix_mask, axis=1, keepdims=True)  # --> [rows, 1]
                positions = ops.arange(ops.shape(target_ids)[1], dtype="int32")
                counted = counted & (positions >= prefix_lengths)
            if self._inputs:
                counted = counted & (ops.arange(ops.shape(target_ids)[1], dtype="int32") > 0)
            log_probability = ops.sum(ops.where(counted, by_token, 0.0), axis=1)
            lengths = ops.sum(ops.cast(counted, "int32"), axis=1)
            score = ranking.score(log_probability, lengths)
            return {"log_probability": log_probability, "score": score}

        return with_xla(score, spec("int32", 2), spec("int32", 2))

    @functools.cached_property
    def align(self):
        """Alignment: from source and target ids to float32 `(rows, target, source)`."""

        def align(source_ids, target_ids):
            _, alignment = score_targets(self._model, source_ids, target_ids)
            is_token = ops.expand_dims(masks.padding_mask(target_ids), 2)
            return ops.where(is_token, alignment, 0.0)

        return with_xla(align, spec("int32", 2), spec("int32", 2))


def without_end(ids):
    """Replaces EOS by padding in ids, int32 `(rows, tokens)`."""
    return ops.where(ops.equal(ids, EOS_ID), PAD_ID, ids)


def spec(dtype, axes, name=None):
    """Describes a tensor whose axes have any sizes."""
    return tf.TensorSpec((None,) * axes, dtype, name)


def with_xla(function, *specs):
    """Returns a function that XLA compiles; `specs` describe its arguments."""
    return tf.function(function, specs, jit_compile=True, autograph=False)


def traced(signature: Signature, function, languages=()):
    """Traces the concrete function of a signature, which returns a dict of tensors."""
    inputs = {**signature.inputs, **dict.fromkeys(languages, TEXT)}
    specs = {
        argument: spec(tensor.dtype, 1 + len(tensor.shape), argument)
        for argument, tensor in inputs.items()
    }
    return tf.function(function, autograph=False).get_concrete_function(**specs)


class GraphTexts:
    """Converts texts to ids and back inside the graph, within the limits of an engine."""

    def __init__(self, engine):
        self._engine = engine
        sides = {"source": engine.source_tokenizer, "target": engine.target_tokenizer}
        # A classifier's target side is `Labels`, which have no tokenizer in the graph.
        in_graph = {
            side: GraphTokenizer(tokenizer)
            for side, tokenizer in sides.items()
            if isinstance(tokenizer, Tokenizer)
        }
        # Separate functions, so that the graph holds the tokenizer's model once.
        self._tokenize = {
            side: tf.function(tokenizer.tokenize, [spec("string", 1)], autograph=False)
            for side, tokenizer in in_graph.items()
        }
        if "target" in in_graph:
            detokenize = in_graph["target"].detokenize
            self.detokenize = tf.function(detokenize, [spec("int32", 2)], autograph=False)

    def ids(self, text, side="source", added=0):
        """Returns ragged ids of each text, truncated as in the engine; the last id is EOS.

        `added` tokens of languages count, too.
        """
        engine = self._engine
        longest = engine.max_source_length if side == "source" else engine.max_target_length
        longest -= added
        if side == "source" and engine.turns and engine.turns.max_turns:
            separator = f" {engine.turns.separator} "
            turns = tf.strings.split(text, separator)[:, -engine.turns.max_turns :]
            text = tf.strings.reduce_join(turns, axis=1, separator=separator)
        ids = self._tokenize[side](text)
        if side == "source" and engine.turns:
            ids = last_turns(ids, longest - 1, engine.source_tokenizer.turn_id)
        return ended(ids, longest)

    def is_present(self, text, ids):
        """Returns bool `(batch,)`: True for texts with more than spaces, a tag and EOS."""
        other_ids = [EOS_ID, *self._engine.source_tokenizer.tag_ids]
        is_of_text = tf.reduce_all(tf.not_equal(ids.values[:, None], other_ids), axis=1)
        return tf.reduce_any(ids.with_values(is_of_text), axis=1) & ~is_blank(text)


def ended(ids, longest):
    """Truncates ragged ids without EOS, and appends EOS."""
    ids = ids[:, : max(longest - 1, 0)]
    return tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1)


class Signatures:
    """Signatures of a model that writes text.

    Any number of texts are tokenized, sorted by length, divided into chunks, and padded to few
    shapes. XLA compiles a function for each shape. `serving_default`, `beam` and `align` share the
    compiled functions of one search. A blank text, of white space or without tokens, gets "" and 0.
    A text of too many tokens is truncated; a conversation loses its oldest turns.

    Attributes:
        table: Descriptions of the signatures.
        shapes: `ChunkShapes` of the compiled functions.
    """

    table = SIGNATURES

    def __init__(self, engine: "ModelEngine", search_options: Mapping[str, Any]):
        self._engine, self._beam_size = engine, search_options.get("beam_size", 1)
        self._width, self._texts = engine.max_target_length, GraphTexts(engine)
        self._languages = GraphLanguages(engine)
        continuation = () if engine.reads_sources else CONTINUATION
        self._number_names = ["score", "log_probability", *continuation]
        self._output_names = ["translation", *self._number_names]
        self._compiled = CompiledSearches(engine, search_options)
        self.shapes = ChunkShapes.of(engine, self._beam_size, int(engine.has_target_prefix))
        self._functions = {
            "serving_default": self.serving_default,
            "greedy": self.greedy,
            "beam": self.beam,
            "sample": self.sample,
            "score": self.score,
            "align": self.align,
        }

    def concrete(self, name):
        """Traces the concrete function of one of `SIGNATURES`, which returns a dict of tensors."""
        return traced(self.table[name], self._functions[name], self._languages.inputs)

    def serving_default(self, text, **languages):
        outputs = self._best(text, self._compiled.beam, languages)
        return {name: outputs[name] for name in ("translation", "score")}

    def greedy(self, text, **languages):
        return self._best(text, self._compiled.greedy, languages)

    def beam(self, text, **languages):
        outputs = self._translate(text, self._compiled.beam, self._beam_size, languages)
        return {name: outputs[name] for name in self._output_names}

    def sample(self, text, **sampling_inputs):
        languages = {name: sampling_inputs.pop(name) for name in self._languages.inputs}
        for name in SAMPLING_INPUTS:
            message = f"`{name}` must have a value for each text."
            tf.debugging.assert_equal(tf.size(sampling_inputs[name]), tf.size(text), message)
        # Values out of range and NaN become the nearest allowed value; 0 is greedy search.
        for name, filter in FILTERS.items():
            value = sampling_inputs[name]
            nearest = tf.clip_by_value(value, filter.lowest, filter.highest)
            sampling_inputs[name] = tf.where(value == value, nearest, filter.nan)
        return self._best(text, self._compiled.sample, languages, **sampling_inputs)

    def score(self, source, target, **languages):
        message = "There must be a target for each source."
        tf.debugging.assert_equal(tf.size(source), tf.size(target), message)
        direction = self._languages.direction(source, **languages)
        sources, _ = self._ids(source, direction)
        targets = tf.concat(direction.target([self._texts.ids(target, "target")]), axis=1)
        if not self._engine.reads_sources:
            sequences = tf.concat([sources[:, :-1], targets[:, :-1]], axis=1)
            targets = ended(sequences, self._width)
        lengths = tf.maximum(sources.row_lengths(), targets.row_lengths())

        def call(indices):
            outputs = self._compiled.score(
                self.shapes.pad_sources(sources, indices), self.shapes.pad_targets(targets, indices)
            )
            return {name: values[: tf.size(indices)] for name, values in outputs.items()}

        initial = dict.fromkeys(("log_probability", "score"), tf.zeros(tf.shape(source)))
        indices = longest_first(tf.fill(tf.shape(source), True), lengths)
        return in_chunks(indices, call, initial, self.shapes.largest)

    def align(self, text, **languages):
        text_ids = self._texts.ids(text, added=self._languages.num_added)
        is_present = self._texts.is_present(text, text_ids)
        dense_ids = text_ids.to_tensor(default_value=PAD_ID)
        source_ids = _trimmed(tf.where(is_present[:, None], dense_ids, PAD_ID))
        longest = tf.shape(source_ids)[1] + self._languages.num_added

        def search(padded_ids, inputs):
            outputs = self._compiled.beam(padded_ids, inputs)
            # A forced token is no part of the translation, but the decoder reads it.
            forced_ids = [ids[:, None] for ids in inputs.values()]
            target_ids = tf.concat([*forced_ids, outputs["ids"][:, 0]], axis=1)
            alignment = self._compiled.align(padded_ids, target_ids)[:, len(forced_ids) :]
            alignment = widen(widen(alignment, longest, axis=2), self._width, axis=1)
            return {**outputs, "alignment": alignment}

        extra_outputs = {"alignment": tf.zeros([tf.size(text), self._width, longest])}
        outputs = self._translate(text, search, 1, languages, extra_outputs=extra_outputs)
        # Only the columns of the text remain.
        for prefix in self._languages.direction(text, **languages).source_prefix:
            starts = prefix.row_lengths()
            columns = tf.expand_dims(starts, 1) + tf.range(tf.shape(source_ids)[1], dtype=tf.int64)
            columns = tf.minimum(columns, tf.cast(longest, tf.int64) - 1)
            alignment = tf.gather(outputs["alignment"], columns, axis=2, batch_dims=1)
            outputs["alignment"] = alignment
        target_ids = _trimmed(outputs["ids"][:, 0])
        return {
            **{name: outputs[name][:, 0] for name in self._output_names},
            "source_tokens": _tokens(self._engine.source_tokenizer, source_ids),
            "target_tokens": _tokens(self._engine.target_tokenizer, target_ids),
            "alignment": outputs["alignment"][:, : tf.shape(target_ids)[1]],
        }

    # Parts that signatures share.

    def _best(self, text, search, languages, **sampling_inputs):
        outputs = self._translate(text, search, 1, languages, sampling_inputs)
        return {name: outputs[name][:, 0] for name in self._output_names}

    def _ids(self, text, direction):
        """Returns ragged source ids with the tokens of languages, and which texts are present."""
        ids = self._texts.ids(text, added=self._languages.num_added)
        is_present = self._texts.is_present(text, ids)
        return tf.concat(direction.source([ids]), axis=1), is_present

    def _translate(self, text, search, n_best, languages, inputs=MappingProxyType({}), **options):
        """Calls `_search_in_chunks` for texts, and adds the texts of the hypotheses."""
        direction = self._languages.direction(text, **languages)
        ids, is_searched = self._ids(text, direction)
        for forced_ids in direction.target_prefix:
            inputs = {**inputs, "forced_ids": forced_ids[:, 0]}
        outputs = self._search_in_chunks(ids, is_searched, search, n_best, inputs, **options)
        texts = self._texts.detokenize(tf.reshape(outputs["ids"], [-1, self._width]))
        return {**outputs, "translation": tf.reshape(texts, [-1, n_best])}

    def _search_in_chunks(
        self,
        ids,
        is_searched,
        search,
        n_best,
        inputs=MappingProxyType({}),
        extra_outputs=MappingProxyType({}),
    ):
        """Returns ids and numbers of the hypotheses of any number of sentences.

        Args:
            ids: Ragged int32 `(batch, (source))`.
            is_searched: Bool `(batch,)`; False for sentences that get empty results.
            search: One of `CompiledSearches`.
            n_best: Number of hypotheses per sentence.
            inputs: Tensors `(batch,)` by name that `search` also takes.
            extra_outputs: Tensors `(batch, …)` by name that `search` also returns, with their
                values for sentences that are not searched.
        """

        def call(indices):
            padded_inputs = {
                name: pad_rows(values, indices, self.shapes.rows) for name, values in inputs.items()
            }
            count = tf.size(indices)
            outputs = search(self.shapes.pad_sources(ids, indices), padded_inputs)
            numbers = {name: outputs[name][:count, :n_best] for name in self._number_names}
            # Where a sentence has fewer hypotheses than `n_best`, the last places are empty.
            is_missing = numbers["score"] < NEG_INF / 2
            best_ids = outputs["ids"][:count, :n_best]
            best_ids = tf.where(is_missing[:, :, None], PAD_ID, best_ids)
            for name, values in numbers.items():
                if values.dtype.is_floating:
                    numbers[name] = tf.where(is_missing, -math.inf, values)
            return {
                "ids": widen(best_ids, self._width, axis=2),
                **numbers,
                **{name: outputs[name][:count] for name in extra_outputs},
            }

        batch = tf.size(is_searched)
        empty_score = tf.tile([[0.0] + [-math.inf] * (n_best - 1)], [batch, 1])
        initial = {
            "ids": tf.zeros([batch, n_best, self._width], tf.int32),
            **dict.fromkeys(self._number_names, empty_score),
            **extra_outputs,
        }
        if "continuation_length" in initial:
            initial["continuation_length"] = tf.zeros([batch, n_best], tf.int32)
        indices = longest_first(is_searched, ids.row_lengths())
        return in_chunks(indices, call, initial, self.shapes.largest)


class LabelSignatures:
    """The signature `serving_default` of a classifier, with the tokenizer and the model inside.

    Attributes:
        table: Description of the signature.
        shapes: `ChunkShapes` of the compiled function.
    """

    table = LABEL_SIGNATURES

    def __init__(self, engine: "ClassifierEngine"):
        self._labels, self._texts = engine.labels, GraphTexts(engine)
        self.shapes = ChunkShapes.of(engine, 1)
        self._run = with_xla(engine.label_probabilities, spec("int32", 2))

    def concrete(self, name):
        """Traces the concrete function of `serving_default`, which returns a dict of tensors."""
        return traced(self.table[name], self.serving_default)

    def serving_default(self, text):
        ids = self._texts.ids(text)
        is_present = self._texts.is_present(text, ids)

        def call(indices):
            probabilities = self._run(self.shapes.pad_sources(ids, indices))
            return {"probabilities": probabilities[: tf.size(indices)]}

        initial = {"probabilities": tf.zeros([tf.size(text), len(self._labels)])}
        indices = longest_first(is_present, ids.row_lengths())
        outputs = in_chunks(indices, call, initial, self.shapes.largest)
        return labelled(self._labels, outputs["probabilities"], is_present)


def _trimmed(ids):
    """Removes the columns that are padding in all rows."""
    is_used = tf.reduce_any(ids != PAD_ID, axis=0)
    return ids[:, : tf.reduce_sum(tf.cast(is_used, tf.int32))]


def _tokens(tokenizer, ids):
    """Returns the tokens of ids as strings, "" for padding."""
    pieces = tokenizer.pieces_of(range(tokenizer.vocabulary_size))
    pieces[PAD_ID] = ""
    return tf.gather(tf.constant(pieces), ids)
