"""Export as a model of Marian: an npz, vocabularies, and the options of its decoder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.base.errors import print_lines
from keras_transformer.base.files import replaced_file, write_whole
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding.search_options import DecodingOptions, exported_search_options
from keras_transformer.export.exporter import log_step, read_template
from keras_transformer.export.options import RankedOptions
from keras_transformer.extras.foreign.foreign_export import ForeignExporter, gives_probability
from keras_transformer.extras.foreign.foreign_model import inverted
from keras_transformer.extras.foreign.weights import named_arrays
from keras_transformer.extras.marian.reader import ACTIVATIONS, OPTIONS
from keras_transformer.text.vocabulary import parsed

if TYPE_CHECKING:
    from keras_transformer.engine import ModelEngine

_ACTIVATIONS = inverted(ACTIVATIONS)
_VALUES = {
    "positions": ("sinusoidal", "none"),
    "position_layout": ("halves",),
    "position_frequencies": ("marian",),
    "position_offset": (0,),
    "layer_norm_epsilon": (1e-6,),
    "activation": tuple(_ACTIVATIONS),
    "decoder": ("attention", "ssru"),
    "length_normalization": ("marian",),
}
_COMMAND = "marian-decoder --config decoder.yml"


class MarianExporter(ForeignExporter):
    """The format `marian`: a folder for `marian-decoder`, which `import_model` verifies."""

    format_name = "marian"
    purpose = "An export to Marian"
    rule = "A model of Marian has"
    advice = " Export a model that was imported from Marian or trained in its form."
    values = _VALUES

    def resolve_export_options(
        self, engine: "ModelEngine", options: RankedOptions
    ) -> dict[str, Any]:
        resolved, config = super().resolve_export_options(engine, options), engine.model.config
        if _begins_with_vector(engine):
            print_lines(
                "Marian's decoder begins with zeros, not with a trained vector: texts may differ."
            )
        if config.normalize_first and config.decoder != "ssru":  # Keys are normalized once only.
            print_lines(
                "Marian's decoder, unlike its scorer, computes this pre-norm model otherwise."
            )
        return resolved

    def difference(self, engine: "ModelEngine") -> str:
        if _begins_with_vector(engine):
            return "Marian's decoder begins with zeros: only models that do can be exported."
        if gives_probability(engine, PAD_ID) or gives_probability(engine, BOS_ID):
            return (
                "Marian has neither padding nor BOS: train the model until it hardly gives them "
                "probability."
            )
        return ""

    def write(self, engine: "ModelEngine", folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        log_step("writing the weights and vocabularies")
        with replaced_file(folder / "model.npz") as path:
            np.savez(path, **tensors_of(engine.model))
        vocabularies, command = _write_vocabularies(engine, folder)
        decoding_options = DecodingOptions(**exported_search_options(options))
        decoder = {
            "relative-paths": True,
            "models": ["model.npz"],
            "vocabs": vocabularies,
            "beam-size": decoding_options.beam_size,
            "normalize": decoding_options.length_penalty,
            "word-penalty": decoding_options.word_penalty,
            "max-length-factor": decoding_options.max_length_ratio,
        }
        _write_yaml(folder / "decoder.yml", decoder)
        return {**options, "command": command}


def _begins_with_vector(engine):
    """Returns whether the decoder begins with a trained vector."""
    return bool(np.any(np.asarray(engine.model.target_embedding.embeddings)[BOS_ID]))


def tensors_of(model: Any) -> dict[str, np.ndarray]:
    """Returns the tensors of Marian's npz by their names, with the model's options as text."""
    table = model.target_embedding.embeddings
    tables = {"Wemb": table}
    if model.config.tie_embeddings != "all":
        tables = {"encoder_Wemb": model.source_embedding.embeddings, "decoder_Wemb": table}
    if model.output_projection is not None:
        tables["decoder_ff_logit_out_Wt"] = np.transpose(model.output_projection.kernel)
    tensors = {name: np.asarray(table, "float32")[EOS_ID:] for name, table in tables.items()}
    if model.output_bias is not None:
        tensors["decoder_ff_logit_out_b"] = np.asarray(model.output_bias, "float32")[None, EOS_ID:]
    tensors |= {name: np.atleast_2d(array) for name, array in named_arrays(model)}
    text = _options(model).encode()
    tensors[OPTIONS] = np.frombuffer(text.ljust(-(-len(text) // 256) * 256, b"\0"), "int8")
    return tensors


def _options(model):
    config, is_ssru = model.config, model.config.decoder == "ssru"
    fields = {
        "source_size": model.source_embedding.vocabulary_size - EOS_ID,
        "target_size": model.target_embedding.vocabulary_size - EOS_ID,
        "is_tied": config.tie_embeddings == "decoder",
        "is_joint": config.tie_embeddings == "all",
        "omits_bias": model.output_bias is None,
        "preprocess": "n" if config.normalize_first else "",
        "postprocess": "da" if config.normalize_first else "dan",
        "autoreg": "rnn" if is_ssru else "self-attention",
        "cell": "ssru" if is_ssru else "gru",
        "no_positions": config.positions == "none",
    }
    fields = {**config.to_dict(), **fields, "activation": _ACTIVATIONS[config.activation]}
    # JSON's texts, numbers and truth values are YAML's.
    texts = {name: json.dumps(value) for name, value in fields.items()}
    return read_template(__file__, "decoder.yml").substitute(texts)


def _write_vocabularies(engine, folder):
    """Writes both vocabularies; returns their names and the command that translates a text."""
    tokenizers = {"source": engine.source_tokenizer, "target": engine.target_tokenizer}
    # With more pieces than ids: a SentencePiece model, and a file with the names of the ids.
    names_ids = any(tokenizer.has_unknown_pieces for tokenizer in tokenizers.values())
    for side, tokenizer in tokenizers.items():
        model = parsed(tokenizer.model_bytes)
        spec = model.trainer_spec
        del model.pieces[:EOS_ID], spec.control_symbols[:]  # Neither padding nor BOS.
        spec.pad_id, spec.bos_id, spec.eos_id, spec.unk_id = -1, -1, 0, 1
        write_whole(folder / f"{side}.spm", model.SerializeToString())
        if names_ids:
            names = tokenizer.pieces_of(range(EOS_ID, tokenizer.vocabulary_size))
            _write_yaml(folder / f"{side}.vocab.yml", {name: id for id, name in enumerate(names)})
    if not names_ids:
        return ["source.spm", "target.spm"], f"{_COMMAND} < in.txt"
    pieces = "spm_encode --model source.spm --output_format piece < in.txt"
    command = f"{pieces} | {_COMMAND} | spm_decode --model target.spm"
    return ["source.vocab.yml", "target.vocab.yml"], command


def _write_yaml(path, values):
    import yaml

    write_whole(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
