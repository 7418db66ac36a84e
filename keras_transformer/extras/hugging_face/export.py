"""Export as a folder of Hugging Face's transformers: Marian's class, or Pegasus' for pre-norm.

Their residual stream has the sines of the positions before the cosines. Ours has them alternately,
so its dimensions are permuted, in each tensor that reads or writes it: an exact change.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.base.errors import InputError, print_lines, require
from keras_transformer.base.files import replaced_file, write_whole
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.impossible import BANNED
from keras_transformer.decoding.search_options import DecodingOptions, exported_search_options
from keras_transformer.export.exporter import log_step
from keras_transformer.export.options import SearchedOptions
from keras_transformer.extras.foreign.foreign_export import ForeignExporter, gives_probability
from keras_transformer.extras.foreign.foreign_model import inverted
from keras_transformer.extras.foreign.weights import named_arrays
from keras_transformer.extras.hugging_face import names
from keras_transformer.layers.positions import position_table
from keras_transformer.text.languages import Languages, language_name, named_directions
from keras_transformer.text.tags import language_in_tag
from keras_transformer.text.vocabulary import SPACE, parsed

if TYPE_CHECKING:
    from keras_transformer.engine import ModelEngine

_ACTIVATIONS = inverted(names.ACTIVATIONS)
_VALUES = {
    "positions": ("sinusoidal",),
    "position_frequencies": ("paper",),
    "position_offset": (0,),
    "layer_norm_epsilon": (1e-5,),
    "activation": tuple(_ACTIVATIONS),
    "decoder": ("attention",),
}
_CLASSES = {
    False: ("marian", "MarianMTModel"),
    True: ("pegasus", "PegasusForConditionalGeneration"),
}
# Matrices that read the residual stream; the others write it. Biases that are not added to it.
_READERS, _INNER_BIASES = ("Wq", "Wk", "Wv", "W1"), ("bq", "bk", "bv", "b1")
_END, _UNKNOWN = 0, 1  # ids in the folder, as Marian has them
_LISTED = 6  # languages in the title of a model card


class HuggingFaceExporter(ForeignExporter):
    """The format `hugging_face`: a folder for `AutoModelForSeq2SeqLM` and `AutoTokenizer`."""

    format_name = "hugging_face"
    purpose = "An export to Hugging Face"
    rule = "transformers has no class for this model: it needs"
    advice = " Export it for saved_model or litert, and a student of Marian for marian."
    values = _VALUES
    has_model_card = True

    def resolve_export_options(
        self, engine: "ModelEngine", options: SearchedOptions
    ) -> dict[str, Any]:
        resolved, config = super().resolve_export_options(engine, options), engine.model.config
        require("safetensors.numpy", "safetensors, which writes the model,", "import")
        if config.normalize_first and config.tie_embeddings != "all":
            rule = "A pre-norm model becomes Pegasus, which has one table of embeddings"
            raise InputError(f"{rule}: `tie_embeddings: all`. Received: {config.tie_embeddings!r}.")
        _show_other_search(resolved)
        return resolved

    def write(self, engine: "ModelEngine", folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        log_step("writing the weights and vocabularies")
        layout = _Layout(engine)
        safetensors: Any = require("safetensors.numpy", "safetensors, which writes it,", "import")
        files = layout.json_files(options)
        with replaced_file(folder / "model.safetensors") as path:
            # Its bytes are written as they lie in memory.
            tensors = layout.tensors(files["config.json"])
            tensors = {name: np.ascontiguousarray(array) for name, array in tensors}
            safetensors.save_file(tensors, path, {"format": "pt"})
        for name, content in files.items():
            write_whole(folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        for side, tokenizer in layout.tokenizers.items():
            write_whole(folder / f"{side}.spm", _with_text(tokenizer.model_bytes))
        return dict(options)

    def difference(self, engine: "ModelEngine") -> str:
        if not _Layout(engine).bans_padding or not gives_probability(engine, PAD_ID):
            return ""
        return "The folder gives padding no probability: train the model until it hardly does."

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        tokens = manifest.get("language_tokens")
        known = None if tokens is None else Languages.from_dict(tokens)
        directions = named_directions(known, manifest["languages"])
        sides = [list(dict.fromkeys(filter(None, side))) for side in zip(*directions, strict=True)]
        languages = "".join(f"- {code}\n" for code in dict.fromkeys(itertools.chain(*sides)))
        licence = manifest.get("licence")
        has = {"the licence": licence, "the languages": languages}
        missing = [name for name, value in has.items() if not value]
        sentences = []
        if texts := manifest.get("training_texts"):
            sentences.append(
                f"The model was trained on {', '.join(f'`{text}`' for text in texts)}."
            )
        if (bleu := manifest.get("validation_bleu")) is not None:
            signature = f" (`{manifest['bleu_signature']}`)"
            sentences.append(
                f"Greedy translations of the validation text have BLEU {bleu}{signature}."
            )
        return {
            "language_field": f"language:\n{languages}" if languages else "",
            "direction": "".join(map(_with_names, ("from", "to"), sides)),
            "training": "\n".join(["## Training", "", *sentences, "", ""]) if sentences else "",
            "licence": json.dumps(licence) if licence else "other",
            "missing": _listed([*missing, "the data"]),
        }


def _with_names(word, codes):
    """Returns the words "from English and French" of codes, none without codes."""
    names = list(map(language_name, codes))
    if len(names) > _LISTED:
        names[_LISTED - 1 :] = [f"{len(names) - _LISTED + 1} more"]
    return f" {word} {_listed(names)}" if names else ""


def _listed(names):
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _show_other_search(values):
    """Names what transformers' search lacks."""
    decoding_options = DecodingOptions(**exported_search_options(values))
    lacking = {}
    if decoding_options.beam_size > 1 and decoding_options.length_normalization != "length":
        lacking["length_normalization"] = decoding_options.length_normalization
    for name in ("word_penalty", "max_length_ratio"):
        if values.get(name):
            lacking[name] = values[name]
    if lacking:
        names = ", ".join(f"{name}={value!r}" for name, value in lacking.items())
        print_lines(
            f"The search of transformers lacks these options, so its texts may differ: {names}"
        )


class _Layout:
    """The model in the order of ids and dimensions that the folder has.

    Args:
        engine: Trained engine of the run.

    Attributes:
        bans_padding: Whether padding has the row of the start, and therefore no probability.
    """

    def __init__(self, engine: "ModelEngine"):
        self._engine, self._model = engine, engine.model
        self._config = engine.model.config
        self.tokenizers = {"source": engine.source_tokenizer, "target": engine.target_tokenizer}
        table = np.asarray(self._model.target_embedding.embeddings, "float32")
        self._starts_with_padding = np.array_equal(table[BOS_ID], table[PAD_ID])
        # CTranslate2's converter of Pegasus starts with padding, whose row is masked elsewhere.
        self.bans_padding = self._config.normalize_first and not self._starts_with_padding
        self._names = {side: _names(tokenizer) for side, tokenizer in self.tokenizers.items()}
        self._is_joint = self._names["source"] == self._names["target"]
        self._ids = {side: self._ordered(names) for side, names in self._names.items()}
        width = self._config.model_dim
        alternating = [*range(0, width, 2), *range(1, width, 2)]
        is_alternating = self._config.position_layout == "interleaved"
        self._dimensions = alternating if is_alternating else list(range(width))

    def _ordered(self, names):
        """Returns this package's id for each id of the folder: `</s>`, `<unk>`, pieces, `<pad>`.

        Padding has one id for both sides, so it precedes the pieces of two vocabularies.
        """
        special = [PAD_ID] if self._starts_with_padding else [BOS_ID, PAD_ID]
        pieces = range(UNK_ID + 1, len(names))
        if self._is_joint:
            return [EOS_ID, UNK_ID, *pieces, *special]
        return [EOS_ID, UNK_ID, *special, *pieces]

    def tensors(self, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
        """Yields tensors in float32 by their names in a file, for the content of `config.json`."""
        keys = {
            marian_name: names.with_prefix(name)
            for name, marian_name in names.marian_names(config).items()
        }
        for marian_name, array in self._tensors():
            yield keys[marian_name], array

    def _tensors(self):
        """Yields tensors by Marian's names."""
        model, target = self._model, self._model.target_embedding.embeddings
        if self._config.tie_embeddings == "all":
            yield "Wemb", self._table(target, "target")
        else:
            yield "encoder_Wemb", self._table(model.source_embedding.embeddings, "source")
            yield "decoder_Wemb", self._table(target, "target")
        if model.output_projection is not None:
            kernel = np.asarray(model.output_projection.kernel, "float32")
            yield "decoder_ff_logit_out_Wt", self._table(kernel.T, "target")
        bias = np.zeros(len(self._names["target"]), "float32")
        if model.output_bias is not None:
            bias = np.asarray(model.output_bias, "float32")
        if self.bans_padding:
            bias = bias.copy()
            bias[PAD_ID] = BANNED
        yield "decoder_ff_logit_out_b", bias[self._ids["target"]][None]
        if self._config.normalize_first:  # Marian's class computes them.
            table = self._positions()
            yield "encoder_Wpos", table
            yield "decoder_Wpos", table
        for name, array in named_arrays(model):
            yield name, self._block_tensor(name, array)

    @property
    def _max_positions(self):
        return max(512, self._engine.max_source_length, self._engine.max_target_length)

    def _positions(self):
        layer, width = self._model.source_positions, self._config.model_dim
        table = position_table(layer, self._max_positions, width)
        return table[:, self._dimensions]

    def _table(self, table, side):
        rows = np.array(table, "float32")
        if self.bans_padding:
            rows[PAD_ID] = rows[BOS_ID]
        return rows[self._ids[side]][:, self._dimensions]

    def _block_tensor(self, name, array):
        """Returns a tensor of a block as `(outputs, inputs)`, with permuted dimensions."""
        kind = name.rpartition("_")[2]
        if array.ndim == 2:
            reads = kind in _READERS
            array = array[self._dimensions] if reads else array[:, self._dimensions]
            return array.T
        return array if kind in _INNER_BIASES else array[self._dimensions]

    def json_files(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the content of the JSON files by name."""
        files = {
            "config.json": self._config_fields(),
            "generation_config.json": self._special_ids() | self._search_fields(options),
            "tokenizer_config.json": {
                "tokenizer_class": "MarianTokenizer",
                "separate_vocabs": not self._is_joint,
                "model_max_length": self._engine.max_source_length,
                "eos_token": "</s>",
                "unk_token": "<unk>",
                "pad_token": "<pad>",
            },
            "vocab.json": self._ids_of_names("source"),
        }
        if not self._is_joint:
            files["target_vocab.json"] = self._ids_of_names("target")
        return files

    def _config_fields(self):
        config = self._config
        kind, class_name = _CLASSES[config.normalize_first]
        return {
            "architectures": [class_name],
            "model_type": kind,
            "is_encoder_decoder": True,
            "vocab_size": len(self._ids["source"]),
            "decoder_vocab_size": len(self._ids["target"]),
            "d_model": config.model_dim,
            "encoder_layers": config.num_encoder_layers,
            "encoder_attention_heads": config.num_heads,
            "encoder_ffn_dim": config.intermediate_dim,
            "decoder_layers": config.num_decoder_layers,
            "decoder_attention_heads": config.num_heads,
            "decoder_ffn_dim": config.intermediate_dim,
            "activation_function": _ACTIVATIONS[config.activation],
            "scale_embedding": True,
            "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
            "tie_word_embeddings": config.tie_embeddings != "none",
            # Converters read these fields of the models on the hub.
            "normalize_before": config.normalize_first,
            "add_final_layer_norm": config.normalize_first,
            "normalize_embedding": False,
            "static_position_embeddings": True,
            "max_position_embeddings": self._max_positions,
            "dropout": config.dropout,
            "bos_token_id": _END,
            **self._special_ids(),
            "dtype": "float32",
        }

    def _special_ids(self):
        ids = self._ids["target"]
        return {
            "pad_token_id": ids.index(PAD_ID),
            "eos_token_id": _END,
            "forced_eos_token_id": _END,
            "decoder_start_token_id": ids.index(PAD_ID if self._starts_with_padding else BOS_ID),
        }

    def _search_fields(self, options):
        decoding_options = DecodingOptions(**exported_search_options(options))
        ids = self._special_ids()
        banned_ids = {_UNKNOWN, ids["decoder_start_token_id"], ids["pad_token_id"]}
        return {
            "num_beams": decoding_options.beam_size,
            "max_length": self._engine.max_target_length + 1,  # with the start
            "length_penalty": decoding_options.length_penalty,
            "early_stopping": decoding_options.stops_early,
            "bad_words_ids": [[id] for id in sorted(banned_ids)],
        }

    def _ids_of_names(self, side):
        """Returns the content of a vocabulary: the folder's ids by their names."""
        names = self._names[side]
        return {names[id]: index for index, id in enumerate(self._ids[side])}


def _with_text(model_bytes):
    """Returns a SentencePiece model without control pieces, which it would decode to nothing.

    In an import these are pieces of the other side, and transformers decodes with `source.spm`.
    """
    model = parsed(model_bytes)
    pieces = [
        piece
        for id, piece in enumerate(model.pieces)
        if id <= UNK_ID or piece.type != piece.CONTROL
    ]
    if len(pieces) == len(model.pieces):
        return model_bytes
    new_model = type(model)()
    new_model.CopyFrom(model)
    del new_model.pieces[:]
    new_model.pieces.extend(pieces)
    return new_model.SerializeToString()


def _names(tokenizer):
    """Returns the names of ids in `vocab.json`.

    A language tag has no space in its name: Marian's tokenizer separates it from the text.
    """
    pieces = tokenizer.pieces_of(range(tokenizer.vocabulary_size))
    return [piece.removeprefix(SPACE) if language_in_tag(piece) else piece for piece in pieces]
