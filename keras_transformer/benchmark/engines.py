"""The engines by name: this package's own, LiteRT, CTranslate2 and KerasHub.

An engine is made with `(model, threads, text_engine)` and has a `name`, the `package` that it
needs, the `distribution` that brings it, the `extra` of this package that has it, a `note` on what
sets it apart, and `translate(source_ids, beam_size, steps)`: from lists of ids, each with EOS, to
the `steps` ids of each best hypothesis. Those of `FOR_A_CORPUS` can take a trained run, the
`ModelEngine` given as `text_engine`, and also have
`translate_corpus(sentences, beam_size, length_penalty, batch_size)`, from texts to texts.
"""

import functools
import importlib.metadata
import importlib.util
import tempfile
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_transformer.benchmark.measure import MAX_POSITIONS
from keras_transformer.benchmark.ours import Ours
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import InputError, did_you_mean


class LiteRTFloat32:
    """The graph that `export_litert` makes, on LiteRT's interpreter with XNNPACK."""

    name = "litert"
    package = "ai_edge_litert"
    distribution = "ai-edge-litert"
    extra = "litert"
    quantize = "none"
    note = "the same weights, in this package's LiteRT export"

    def __init__(self, model, threads=2, text_engine=None):
        self._model, self._threads = model, threads
        self._runner = functools.cache(self._make_runner)

    def translate(self, source_ids, beam_size, steps):
        """EOS is never chosen."""
        rows = keras.utils.pad_sequences(source_ids, padding="post", value=PAD_ID)
        _, run = self._runner(rows.shape[1], beam_size, steps)
        return run(source_ids=rows)["ids"].reshape(len(rows), -1, steps)[:, 0].tolist()

    def _make_runner(self, length, beam_size, steps):
        import tensorflow as tf
        from ai_edge_litert.interpreter import Interpreter

        from keras_transformer.export.litert.file import convert, join, traced
        from keras_transformer.export.litert.search import LiteRTOptions, LiteRTSearch

        forced = dict(max_length_ratio=0.0, max_length_margin=steps, forbidden_ids=(EOS_ID,))
        search = LiteRTSearch(
            self._model, LiteRTOptions(beam_size, 0.0, 1, steps, **forced), length
        )
        spec = tf.TensorSpec((None, length), tf.int32, name="source_ids")
        content = join(convert([("search", traced(search.__call__, spec))]), self.quantize)
        interpreter = Interpreter(model_content=content, num_threads=self._threads)
        # Both: a runner alone does not keep its interpreter.
        return interpreter, interpreter.get_signature_runner("search")


class LiteRTInt8(LiteRTFloat32):
    """The same with weights in int8 and activations of the products in int8, row by row."""

    name = "litert_int8"
    quantize = "int8"
    note = "weights and activations of the products in int8 (dynamic range)"


class CTranslate2Float32:
    """CTranslate2 on a conversion of the model.

    `threads` all work on one batch (`intra_threads`); with a `text_engine` there is one for each
    of as many batches (`inter_threads`).
    """

    name = "ctranslate2"
    package = "ctranslate2"
    distribution = "ctranslate2"
    extra = "peers"
    compute_type = "float32"
    in_parts = False  # whether a forced batch is cut in as many parts as there are threads
    note = (
        "the same weights; its length penalty divides by length^a, ours by ((5 + length) / 6)^a, "
        "and with a penalty it stops once `beam_size` hypotheses have ended, ours when none that "
        "still grows can win: whole-corpus translations may differ"
    )

    def __init__(self, model, threads=2, text_engine=None):
        import ctranslate2

        from keras_transformer.export.ctranslate2 import convert_to_ctranslate2

        self._text_engine = text_engine
        if text_engine is None:
            config = model.config
            sizes = config.vocabulary_size, config.output_vocabulary_size
            tokens = [[f"{i}" for i in range(size)] for size in sizes]
            for each in tokens:
                each[:4] = "<pad>", "<s>", "</s>", "<unk>"
        else:
            tokenizers = text_engine.source_tokenizer, text_engine.target_tokenizer
            self._processors = [_processor(each) for each in tokenizers]
            tokens = [each.id_to_piece(list(range(len(each)))) for each in self._processors]
        self._source_tokens = tokens[0]
        self._target_ids = {token: i for i, token in enumerate(tokens[1])}
        self._parts = threads if self.in_parts else 1
        # Many batches are fastest with a thread for each.
        many = self.in_parts or text_engine is not None
        batches, threads_each = (threads, 1) if many else (1, threads)
        with tempfile.TemporaryDirectory() as folder:
            convert_to_ctranslate2(model, *tokens, folder)
            self._translator = ctranslate2.Translator(
                folder,
                compute_type=self.compute_type,
                inter_threads=batches,
                intra_threads=threads_each,
            )

    def translate(self, source_ids, beam_size, steps):
        """EOS is not chosen below the least length."""
        found = self._translator.translate_batch(
            [[self._source_tokens[i] for i in ids[:-1]] for ids in source_ids],
            beam_size=beam_size,
            min_decoding_length=steps,
            max_decoding_length=steps,
            max_input_length=0,
            max_batch_size=-(-len(source_ids) // self._parts),
        )
        return [[self._target_ids[token] for token in each.hypotheses[0]] for each in found]

    def translate_corpus(self, sentences, beam_size, length_penalty, batch_size):
        source, target = self._processors
        found = self._translator.translate_batch(
            source.encode(sentences, out_type=str),
            beam_size=beam_size,
            length_penalty=length_penalty,
            max_batch_size=batch_size,  # It sorts by length what is more than one batch.
            max_input_length=self._text_engine.max_source_length,
            max_decoding_length=self._text_engine.max_target_length,
        )
        return target.decode([each.hypotheses[0] for each in found])


def _processor(tokenizer):
    # SentencePiece's own: it gives tokens as strings for a whole list at once.
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)


class CTranslate2InParts(CTranslate2Float32):
    """The same with a batch cut into one part for each thread."""

    name = "ctranslate2_in_parts"
    in_parts = True
    note = "each batch as several, one for each thread, which work on their own"


class CTranslate2Int8(CTranslate2Float32):
    """The same with weights and activations of the products in int8."""

    name = "ctranslate2_int8"
    compute_type = "int8"
    note = "weights and activations of the products in int8: not the same arithmetic as ours"


class KerasHubBart:
    """`keras_hub.models.BartSeq2SeqLM` of the model's sizes, with random weights."""

    name = "keras_hub"
    package = "keras_hub"
    distribution = "keras-hub"
    extra = "peers"
    note = (
        "BART of the same sizes with random weights of its own: learned positions, a "
        "normalization of the embeddings and gelu set it apart from our model"
    )

    def __init__(self, model, threads=2, text_engine=None):
        import keras_hub

        config = model.config
        encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
        source, target = config.vocabulary_size, config.output_vocabulary_size
        if encoder != decoder or source != target:
            raise InputError(
                "KerasHub's BART has as many encoder as decoder blocks and one vocabulary: leave "
                f"keras_hub out. Received: num_encoder_layers={encoder}, "
                f"num_decoder_layers={decoder}, vocabulary_size={source}, "
                f"target_vocabulary_size={target}."
            )
        self._keras_hub = keras_hub
        self._backbone = keras_hub.models.BartBackbone(
            vocabulary_size=source,
            num_layers=encoder,
            num_heads=config.num_heads,
            hidden_dim=config.model_dim,
            intermediate_dim=config.intermediate_dim,
            max_sequence_length=MAX_POSITIONS + 1,  # the start of the target comes on top
            dtype="float32",
        )
        self.model = functools.cache(self._make_model)

    def _make_model(self, beam_size):
        """The language model that searches with `beam_size` hypotheses."""
        # `compile` throws the compiled function away, so there is a model for each sampler;
        # they share the weights.
        samplers = self._keras_hub.samplers
        greedy = beam_size == 1
        sampler = samplers.GreedySampler() if greedy else samplers.BeamSampler(beam_size)
        model = self._keras_hub.models.BartSeq2SeqLM(self._backbone, preprocessor=None)
        model.compile(sampler=sampler, jit_compile=True)
        return model

    def translate(self, source_ids, beam_size, steps):
        """`generate` fills the length it is given."""
        # Without an id to stop on, the sampler's loop runs from the first free place to the last.
        inputs = forced_inputs(source_ids, steps)
        outputs = self.model(beam_size).generate(inputs, stop_token_ids=None)
        return outputs["decoder_token_ids"][:, 1:].tolist()


def forced_inputs(source_ids, steps):
    """Arrays for `generate`: the source, and a target of BOS and `steps` ids of padding."""
    encoder_ids = keras.utils.pad_sequences(source_ids, padding="post", value=PAD_ID)
    target = np.full((len(source_ids), steps + 1), PAD_ID, "int32")
    target[:, 0] = BOS_ID
    return {
        "encoder_token_ids": encoder_ids,
        "encoder_padding_mask": (encoder_ids != PAD_ID).astype("int32"),
        "decoder_token_ids": target,
        "decoder_padding_mask": (target == BOS_ID).astype("int32"),
    }


_OURS = (Ours, LiteRTFloat32, LiteRTInt8)
_PEERS = (CTranslate2Float32, CTranslate2InParts, CTranslate2Int8, KerasHubBart)
ENGINES: dict[str, Any] = {engine.name: engine for engine in (*_OURS, *_PEERS)}
FOR_A_CORPUS = (Ours.name, CTranslate2Float32.name, CTranslate2Int8.name)


def choose_engines(
    names: Iterable[str] | None = None, corpus: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """The classes of some engines, or of all, and the extras that bring those not installed.

    With `corpus` they must be able to take a trained run.
    """
    allowed = list(FOR_A_CORPUS if corpus else ENGINES)
    chosen, not_installed = {}, {}
    names = allowed if names is None else list(names)
    if not names:
        raise InputError(f"`engines` must name at least one of {', '.join(allowed)}.")
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            kind = "that can take a trained run " if corpus else ""
            raise InputError(
                f"The engines {kind}are {', '.join(allowed)}. Received: engine={name!r}.{hint}"
            )
        if names.count(name) > 1:
            raise InputError(f"An engine can be named once. Received: engine={name!r} twice.")
        package = ENGINES[name].package
        if package is not None and importlib.util.find_spec(package) is None:
            not_installed[name] = ENGINES[name].extra
        else:
            chosen[name] = ENGINES[name]
    return chosen, not_installed


def versions(engines: dict[str, Any]) -> dict[str, str]:
    """Versions of what takes part, by distribution."""
    names = {"keras", "tensorflow", *(engine.distribution for engine in engines.values())}
    return {name: importlib.metadata.version(name) for name in sorted(names)}
