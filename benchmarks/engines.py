"""The engines by name: this package's own, CTranslate2 and KerasHub.

An engine is made with `(model, text_engine)`: a `Transformer` and, to translate a text, the
`ModelEngine` around it. It has the `package` that it needs, a `label` for plots, a `note`,

- `settings(threads, batch)`: ways to use at most so many threads, keywords in its own words;
- for random sentences `forced(source_ids, beam_size, steps, **setting)`: a function that searches
  lists of ids of one length, EOS included, and gives the `steps` ids of each best hypothesis;
- for a text `of_text(beam_size, length_penalty, **setting)`, a function of sentences and the batch
  size, None for the engine's own, that gives their translations, tokenization included. Engines
  with `takes_shortlist` also take `shortlist=True`, to search with the model's list.
"""

import functools
import itertools
import math
import pathlib
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.measure import MAX_POSITIONS, at_once, choose, grid
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingOptions
from keras_transformer.engine import ModelEngine
from keras_transformer.engine.scheduler import Job, Scheduler
from keras_transformer.engine.translator import Translator


class Ours:
    """The search compiled by XLA, as `ModelEngine` runs it, with `workers` batches at once."""

    package = "keras_transformer"
    label = "keras_transformer"
    note = "a program of XLA for each padded shape; TensorFlow has all threads with any setting"
    takes_shortlist = True

    def __init__(self, model, text_engine=None):
        self._model, self._text_engine = model, text_engine

    def settings(self, threads, batch):
        return [{"workers": n} for n in sorted({n for n, _ in grid(threads, batch)})]

    def forced(self, source_ids, beam_size, steps, workers=1):
        lengths = dict(max_length=steps, max_length_ratio=math.inf)
        options = DecodingOptions(beam_size, length_penalty=0.0, banned_ids=(EOS_ID,), **lengths)
        scheduler = Scheduler(self._model, (MAX_POSITIONS, steps), frozen=True, workers=workers)
        jobs = [Job(ids) for ids in source_ids]

        def search():
            results = scheduler.search(jobs, options, -(-len(jobs) // workers))
            return [result.ids[0].tolist() for result in results]

        return search

    def of_text(self, beam_size, length_penalty, shortlist=False, workers=1):
        original = self._text_engine
        tokenizers = original.source_tokenizer, original.target_tokenizer
        lengths = original.max_source_length, original.max_target_length
        options = dict(frozen=True, workers=workers, shortlist=original.shortlist)
        engine = ModelEngine(self._model, *tokenizers, *lengths, **options)
        search = dict(beam_size=beam_size, length_penalty=length_penalty, shortlist=shortlist)
        return texts_of(engine, **search)


def texts_of(engine: Any, **options: Any) -> Callable[[list[str], int | None], list[str]]:
    """Returns a function of sentences and a batch size that gives texts."""

    def translate(sentences, batch_size):
        translations = engine.translate(sentences, batch_size=batch_size, **options)
        return [translation.text for translation in translations]

    return translate


class CTranslate2:
    """CTranslate2 on a conversion of the model; several (`inter_threads`) take parts of a batch."""

    package = "ctranslate2"
    label = "CTranslate2"
    computes_in = "float32"  # what the names of its compute types begin with
    note = "the same weights; with a length penalty it ranks and stops by rules of its own"
    takes_shortlist = True  # `use_vmap`: among the candidates of all sentences of a batch

    def __init__(self, model, text_engine=None):
        import ctranslate2
        import sentencepiece

        from keras_transformer.extras.ctranslate2.export import (
            convert_to_ctranslate2,
            write_vocabulary_map,
        )

        self._text_engine = text_engine
        if text_engine is None:
            names = map(str, range(4, model.config.vocabulary_size))
            self._tokens = ["<pad>", "<s>", "</s>", "<unk>", *names]
            tokens = self._tokens, self._tokens
        else:
            tokenizers = text_engine.source_tokenizer, text_engine.target_tokenizer
            # SentencePiece's own: they give tokens as strings for a whole list at once.
            processor = sentencepiece.SentencePieceProcessor
            self._processors = [processor(model_proto=t.model_bytes) for t in tokenizers]
            tokens = [p.id_to_piece(list(range(len(p)))) for p in self._processors]
        self._folder = tempfile.TemporaryDirectory()
        convert_to_ctranslate2(model, *tokens, self._folder.name)
        if text_engine is not None and text_engine.shortlist is not None:
            write_vocabulary_map(text_engine, pathlib.Path(self._folder.name) / "vmap.txt")
        self._translator = functools.partial(ctranslate2.Translator, self._folder.name)
        # Plain "int8" is the one of the others that suits the processor.
        types = ctranslate2.get_supported_compute_types("cpu") - {"int8"}
        self._types = sorted(name for name in types if name.startswith(self.computes_in))

    def settings(self, threads, batch):
        ways = itertools.product(self._types, grid(threads, batch))
        return [
            {"compute_type": name, "inter_threads": parts, "intra_threads": size}
            for name, (parts, size) in ways
        ]

    def forced(self, source_ids, beam_size, steps, inter_threads=1, **setting):
        # EOS is not chosen below the least length.
        lengths = dict(min_decoding_length=steps, max_decoding_length=steps, max_input_length=0)
        lengths["max_batch_size"] = -(-len(source_ids) // inter_threads)
        translator = self._translator(inter_threads=inter_threads, **setting)
        tokens = [[self._tokens[i] for i in ids[:-1]] for ids in source_ids]
        ids = {token: i for i, token in enumerate(self._tokens)}

        def search():
            results = translator.translate_batch(tokens, beam_size=beam_size, **lengths)
            return [[ids[token] for token in result.hypotheses[0]] for result in results]

        return search

    def of_text(self, beam_size, length_penalty, shortlist=False, **setting):
        translator, (_, target) = self._translator(**setting), self._processors
        options = dict(beam_size=beam_size, length_penalty=length_penalty, use_vmap=shortlist)
        options["max_input_length"] = self._text_engine.max_source_length
        options["max_decoding_length"] = self._text_engine.max_target_length

        def translate(sentences, batch_size):
            tokens = self._text_engine.source_tokenizer.pieces(sentences)
            # It sorts by length what is more than one batch.
            results = translator.translate_batch(tokens, max_batch_size=batch_size or 32, **options)
            return target.decode([result.hypotheses[0] for result in results])

        return translate


class CTranslate2Int8(CTranslate2):
    """The same with weights and activations of the products in int8."""

    computes_in = "int8"
    label = "CTranslate2, int8"
    note = "weights and activations of the products in int8: not the same arithmetic as ours"


class Artifact:
    """An export in any format, loaded by `Translator.load` as its users load it."""

    package = "keras_transformer"
    note = "an export, loaded by `Translator.load`"
    takes_shortlist = False  # It was exported with one or without.

    def __init__(self, path, threads):
        self._translator = Translator.load(path, threads=threads)

    def settings(self, threads, batch):
        return [{}]

    def of_text(self, beam_size, length_penalty):
        return texts_of(self._translator, beam_size=beam_size, length_penalty=length_penalty)


class KerasHubBart:
    """`keras_hub.models.BartSeq2SeqLM` of the model's sizes, with random weights."""

    package = "keras_hub"
    label = "KerasHub"
    note = "BART of the same sizes, its own random weights, learned positions and gelu"

    def __init__(self, model, text_engine=None):
        import keras_hub

        config = model.config
        self.backbone = keras_hub.models.BartBackbone(
            vocabulary_size=config.vocabulary_size,
            num_layers=config.num_encoder_layers,
            num_heads=config.num_heads,
            hidden_dim=config.model_dim,
            intermediate_dim=config.intermediate_dim,
            max_sequence_length=MAX_POSITIONS + 1,  # the start of the target comes on top
            dtype="float32",
        )

    def settings(self, threads, batch):
        return [{"batches_at_once": n} for n in sorted({n for n, _ in grid(threads, batch)})]

    def forced(self, source_ids, beam_size, steps, batches_at_once=1):
        import keras_hub

        samplers = keras_hub.samplers
        sampler = samplers.GreedySampler() if beam_size == 1 else samplers.BeamSampler(beam_size)
        model = keras_hub.models.BartSeq2SeqLM(self.backbone, preprocessor=None)
        model.compile(sampler=sampler, jit_compile=True)
        model.make_generate_function()  # Here, not by two threads at once.

        def search(encoder_ids):
            target = np.full((len(encoder_ids), steps + 1), PAD_ID, "int32")
            target[:, 0] = BOS_ID
            inputs = {
                "encoder_token_ids": encoder_ids,
                "encoder_padding_mask": np.ones_like(encoder_ids),
                "decoder_token_ids": target,
                "decoder_padding_mask": (target == BOS_ID).astype("int32"),
            }
            # Without an id to stop on, the loop runs from the first free place to the last.
            outputs = model.generate(inputs, stop_token_ids=None)
            return outputs["decoder_token_ids"][:, 1:].tolist()

        return functools.partial(at_once([search] * batches_at_once), np.array(source_ids, "int32"))


ENGINES: dict[str, Any] = {
    "ours": Ours,
    "ctranslate2": CTranslate2,
    "ctranslate2_int8": CTranslate2Int8,
    "keras_hub": KerasHubBart,
}


def choose_engines(names: Iterable[str] | None = None, of_text: bool = False) -> dict[str, Any]:
    """Returns the classes of some engines, by default of all that are installed."""
    method = "of_text" if of_text else "forced"
    allowed = {name: engine for name, engine in ENGINES.items() if hasattr(engine, method)}
    return choose(names, allowed, "engines")
