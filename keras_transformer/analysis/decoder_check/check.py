"""Checks of a decoder: what its outputs depend on, and what computes the same."""

from collections.abc import Callable
from typing import Any, Literal

import keras

from keras_transformer.analysis.decoder_check import copies
from keras_transformer.analysis.decoder_check.cached_steps import SOURCE_MASK, CachedSteps
from keras_transformer.analysis.decoder_check.calls import ModelCalls, error_text
from keras_transformer.analysis.decoder_check.checker import at, largest_difference
from keras_transformer.analysis.decoder_check.inputs import DecoderInputs
from keras_transformer.analysis.decoder_check.padding import PaddingChecker
from keras_transformer.analysis.decoder_check.report import DecoderReport
from keras_transformer.decoding import SearchModel
from keras_transformer.errors import InputError
from keras_transformer.ids import PAD_ID
from keras_transformer.options import check_choice


def check_decoder(
    model: Any,
    inputs: Any = None,
    *,
    labels: Any = None,
    target: str | None = None,
    pad_id: int = PAD_ID,
    padding_side: Literal["right", "left"] = "right",
    vocabulary_size: int | None = None,
    search_model: SearchModel | None = None,
    exported: Callable[[Any], Any] | None = None,
    reload: bool = True,
    tolerance: float | None = None,
) -> DecoderReport:
    """Checks that a decoder depends only on what it may depend on.

    Sentences of random ids show that no output reads a later token, at inference and in training,
    and that padding and other sentences of the batch change nothing. Cached steps, a saved file
    and an export must compute what the model computes. Each failure names the input, the place, the
    difference and the likely cause. The model's weights and random seeds stay as they are.

    Args:
        model: A Keras model, or a function of ids. It takes token ids `(batch, length)`, a pair
            (source, target), or a dict. It returns logits or hidden vectors
            `(batch, target length, features)`. Inputs whose names end in `mask` get padding masks.
        inputs: An example of the model's inputs. A Functional model, a model of this package and
            a model of one input need none.
        labels: Labels of the example, integers `(batch, length)`.
        target: Name of the input that the decoder reads. By default the input with `target` or
            `decoder` in its name, or the last one.
        pad_id: Id of padding.
        padding_side: Side of a sentence where padding is, `right` or `left`.
        vocabulary_size: Number of ids; by default the rows in the smallest embedding of tokens, or
            the features of the outputs.
        search_model: `SearchModel` of the model, for cached steps. By default the model itself, if
            it has `start_decoding` and `step`.
        exported: A function that calls an export, with the inputs of the model.
        reload: Whether to save and load the model.
        tolerance: Largest difference that is rounding, as a share of the largest output. By default
            1e-4 in float32 on a CPU, 2e-3 on other devices, 1e-2 in float16, and 5e-2 in bfloat16
            or int8; 1e-5 where both calls have the same shapes.

    Raises:
        InputError: The model cannot be called with such inputs, or returns other outputs.

    Example:

    >>> from keras_transformer.layers import TokenEmbedding
    >>> report = check_decoder(TokenEmbedding(100, 16))
    >>> report["future tokens"].result, report["reads its inputs"].result
    ('passed', 'failed')
    """
    check_choice("padding_side", padding_side, ("right", "left"))
    if not callable(model):
        rule = "`model` must be called with ids. Give a wrapper for a search as `search_model`."
        raise InputError(f"{rule} Received: {type(model).__name__}.")
    test_inputs = DecoderInputs(model, inputs, target, pad_id, vocabulary_size)
    try:
        calls = ModelCalls(model, test_inputs, tolerance)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"The model cannot be called with ids for {test_inputs.example_name}: give `inputs`, "
            f"an example of its inputs. Received: {error_text(error)}"
        ) from error
    if search_model is None and hasattr(model, "start_decoding") and hasattr(model, "step"):
        search_model = model
    checker = _DecoderChecker(calls, padding_side)
    try:
        checker.run_all(search_model, exported, reload, labels)
    finally:
        calls.restore()
    return DecoderReport(tuple(checker.checks))


class _DecoderChecker(PaddingChecker):
    """Runs all checks; other ways to compute the same come last."""

    def run_all(self, search_model, exported, reload, labels):
        if not self._repeated_calls():
            return
        self._measure_other_sentences()
        self._future_tokens()
        self._future_tokens_in_training()
        self._earlier_tokens()
        self._other_sentences()
        for name in (*self.inputs.sources, self.target):
            self._padding(name)
        self._labels(labels)
        self._cached_steps(search_model)
        self._saved_file(reload)
        self._export(exported)

    def _cached_steps(self, search_model):
        check, beams = "cached steps", "reordered beams"
        if search_model is None:
            self.skipped(check, "the model has no `start_decoding` and `step`: give `search_model`")
            return
        if len(self.inputs.sources) > 1:
            self.skipped(check, "a search reads one source")
            return
        steps = CachedSteps(search_model, self.calls)
        ids, without_padding = steps.shortened(self._with_padded_source()), self.ids
        without_padding = steps.shortened(without_padding)
        try:
            logits = steps.logits(ids)[:, 0]
            vocabulary = logits.shape[-1]
            if vocabulary != self.expected.shape[-1]:
                self.skipped(check, f"the call returns no logits, and steps {vocabulary} logits")
                return
            difference, cause = steps.compare(ids, logits), SOURCE_MASK
            if difference is not None:
                unpadded_logits = steps.logits(without_padding)[:, 0]
                unpadded = steps.compare(without_padding, unpadded_logits)
                if unpadded is not None:
                    difference, cause = unpadded, steps.cause(without_padding, unpadded)
        except Exception as error:
            self.failed(check, f"A step raises {error_text(error)}")
            return
        if difference is not None:
            message = f"Cached steps differ from the full pass: {at(difference)}."
            self.failed(check, message, cause, self.target, difference)
            return
        self.passed(check)
        try:
            failed = steps.compare_beams(without_padding)
        except NotImplementedError as error:
            self.skipped(beams, str(error))
            return
        except Exception as error:
            self.failed(beams, f"A step raises {error_text(error)}")
            return
        if failed is None:
            self.passed(beams)
            return
        difference, cause = failed
        message = f"Two hypotheses differ from the full pass: {at(difference)}."
        self.failed(beams, message, cause, self.target, difference)

    def _with_padded_source(self):
        """Returns sentences whose source has padding, if the full pass is right for it."""
        for name in self.inputs.sources:
            if self[f"padding of {name}"].result == "passed":
                return self.padded_sentences(name, self.inputs.pad_id)[0]
        return self.ids

    def _saved_file(self, reload):
        check, model = "saved file", self.calls.model
        if not reload or not isinstance(model, keras.Model):
            self.skipped(check, "`reload=False`" if not reload else "needs a Keras model")
            return
        try:
            loaded = copies.load_saved(model)
            outputs = self.calls.outputs_of(loaded, self.ids)
        except Exception as error:
            message = f"Saving or loading raises {error_text(error)}"
            self.failed(check, message, copies.cause_of_loading(error))
            return
        difference = self.calls.compare(outputs, self.expected)
        if difference is None:
            self.passed(check, largest_difference(self.calls, outputs, self.expected))
            return
        message = f"The loaded model differs: {at(difference)}."
        self.failed(check, message, copies.cause_of_loaded(model, loaded), None, difference)

    def _export(self, exported):
        check = "export"
        if exported is None:
            self.skipped(check, "give `exported`, a function that calls the export")
            return
        batches = {"these sentences": self.ids}
        if not self.inputs.has_fixed_batch:
            single = {name: ids[:1] for name, ids in self.ids.items()}
            batches["one sentence"] = single
        for name in self.inputs.sources:
            if name not in self.inputs.fixed and self.inputs.lengths[name] >= 4:
                ids, _ = self.padded_sentences(name, self.inputs.pad_id)
                batches[f"padding of {name}"] = ids
        largest_of_all = 0.0
        for words, ids in batches.items():
            try:
                outputs = self.calls.outputs_of(exported, ids)
            except Exception as error:
                is_first = words == "these sentences"
                cause = "" if is_first else "The export has fixed shapes, of its example."
                self.failed(check, f"The export raises {error_text(error)} ({words})", cause)
                return
            expected = self.call(ids)
            difference = self.calls.compare(outputs, expected)
            if difference is not None:
                message = f"The export differs for {words}: {at(difference)}."
                cause = "The export has other weights, another dtype, or was made in training mode."
                if words != "these sentences":
                    cause = "The export was made for fixed shapes, or has lost the padding mask."
                self.failed(check, message, cause, None, difference)
                return
            size = largest_difference(self.calls, outputs, expected)
            largest_of_all = max(largest_of_all, size)
        self.passed(check, largest_of_all)
