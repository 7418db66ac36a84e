"""Export as a CTranslate2 model with its tokenizers, in a folder that needs no other files."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.base.errors import InputError, print_lines, require, writing
from keras_transformer.base.files import SHORTLIST_FILE, write_whole
from keras_transformer.base.ids import EOS_ID
from keras_transformer.base.impossible import BANNED
from keras_transformer.decoding.ranking import MarianRanking
from keras_transformer.decoding.search_options import DecodingOptions, exported_search_options
from keras_transformer.export.child_process import engine_process
from keras_transformer.export.exporter import Exporter, log_step, write_tokenizers
from keras_transformer.export.readme_languages import example_of
from keras_transformer.export.supported import check_portable, check_transformer
from keras_transformer.export.verification import TOLERANCES, Tolerance, verify
from keras_transformer.extras.ctranslate2.names import ACTIVATIONS, SIDES, join, marian_names
from keras_transformer.extras.foreign.foreign_model import inverted
from keras_transformer.extras.foreign.weights import matrix_of, named_weights

if TYPE_CHECKING:
    from keras_transformer.engine import ModelEngine
    from keras_transformer.models import Transformer

_ACTIVATIONS = inverted(ACTIVATIONS)
_LEAST_POSITIONS = 1024
_LEAST = np.float32(127) / np.finfo("float32").max
_ADVICE = "Train the model longer: CTranslate2 searches differently where a model is unsure."
# CTranslate2 searches without a length penalty: of 1,000 sentences of Multi30k 2, 5 and 28 get
# another translation with penalties of 0, 0.6 and 1.2. With a large vocabulary it normalizes
# probabilities again, without padding and BOS: up to 0.2% off in trained models.
_CLOSE = Tolerance(0.5, 0.02, 0.02, _ADVICE)
_LIST_ARGUMENTS = """
    use_vmap=True,
    max_batch_size=1,"""
_LIST_RULE = """`vmap.txt` has the target tokens that each source token is likely to become. With
`use_vmap=True` CTranslate2 searches among the candidates of all sentences of a batch. With
`max_batch_size=1` other sentences change no translation. Larger batches take less time. With
`use_vmap` CTranslate2 4.8 may force tokens that `target_prefix` lacks.

"""
_SEPARATORS = set(" \t\r\n")
_INT8 = dataclasses.replace(TOLERANCES["int8"], equal=0.2)


class CTranslate2Exporter(Exporter):
    """The format `ctranslate2`: a model with its tokenizers, which needs no other files.

    `Translator.load` searches by default with the export's `beam_size` and `length_penalty`. With
    int8 weights CTranslate2 also computes in int8. The verification runs in a process without
    TensorFlow.

    Attributes:
        banned_ids: Ids that no search may choose, where the format's program does not exclude them.
        tolerances: Limits of the verification by `quantize`.
    """

    format_name = "ctranslate2"
    packages = ("ctranslate2",)
    reading_packages = ("ctranslate2",)
    banned_ids: tuple[int, ...] = ()
    tolerances: Mapping[str, Tolerance] = {"none": _CLOSE, "float16": _CLOSE, "int8": _INT8}

    def resolve_export_options(self, engine: "ModelEngine", options: Any) -> dict[str, Any]:
        check_convertible(engine.model.config)
        if engine.languages is not None and engine.languages.source_suffix is not None:
            rule = "CTranslate2 ends a source with the end token, not with a language"
            raise InputError(f"{rule}. Received: source_suffix={engine.languages.source_suffix!r}.")
        decoding_options = DecodingOptions(**exported_search_options(vars(options)))
        if decoding_options.ranking_class is MarianRanking and decoding_options.beam_size > 1:
            print_lines(
                "CTranslate2's beam does not shrink as Marian's does: texts may differ where two "
                "are nearly as probable."
            )
        resolved = dict(vars(options))
        if engine.has_target_prefix and resolved.get("shortlist"):
            print_lines(
                "CTranslate2 has no shortlist after a forced token, such as a language's: "
                "exporting without the run's."
            )
            resolved["shortlist"] = False
        return resolved

    def write(self, engine: "ModelEngine", folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        log_step("converting the weights")
        # A forced token has a position, too.
        longest_target = engine.max_target_length + engine.has_target_prefix
        convert_to_ctranslate2(
            engine.model,
            *(
                tokenizer.pieces_of(range(tokenizer.vocabulary_size))
                for tokenizer in (engine.source_tokenizer, engine.target_tokenizer)
            ),
            folder,
            max_positions=max(_LEAST_POSITIONS, engine.max_source_length, longest_target),
            quantize=options["quantize"],
            banned_ids=self.banned_ids,
        )
        if options.get("shortlist"):
            engine.shortlist.save(folder / SHORTLIST_FILE)
            write_vocabulary_map(engine, folder / "vmap.txt")
        return {**options, **write_tokenizers(engine, folder)}

    def readme_fields(self, manifest: dict[str, Any]) -> dict[str, str]:
        example, is_listed = example_of(manifest), manifest["shortlist"]
        line = 'pieces = [["{}", *row] for row in pieces]\n'.format
        argument = '\n    target_prefix=[["{}"]] * len(pieces),'.format
        prefix = "".join(map(argument, example.target_prefix))
        return {
            "language_lines": "".join(map(line, example.source_prefix)),
            "language_argument": prefix,
            "without_prefix": "[1:]" if prefix else "",
            # CTranslate2 counts the prefix.
            "decoding_length": str(manifest["max_target_length"] + len(example.target_prefix)),
            # The run's beam goes on where CTranslate2 would stop.
            "patience": "2" if manifest["beam_size"] > 1 else "1",
            "weights": {"none": "float32"}.get(manifest["quantize"], manifest["quantize"]),
            "list_arguments": _LIST_ARGUMENTS if is_listed else "",
            "list_rule": _LIST_RULE if is_listed else "",
        }

    def verify(
        self,
        engine: "ModelEngine",
        folder: Path,
        manifest: dict,
        texts: Sequence[str] | None,
        disposable_weights: bool = False,
    ) -> dict[str, Any]:
        options = exported_search_options(manifest)
        with engine_process(folder) as child:
            tolerance = self.tolerances[manifest["quantize"]]
            return verify(
                child, engine, texts, tolerance, disposable_weights, alignment=True, **options
            )


def write_vocabulary_map(engine: "ModelEngine", path: Path) -> None:
    """Writes the shortlist of an engine for CTranslate2: lines of a source token and candidates."""
    source_tokens, target_tokens = (
        tokenizer.pieces_of(range(tokenizer.vocabulary_size))
        for tokenizer in (engine.source_tokenizer, engine.target_tokenizer)
    )
    for token in (*source_tokens, *target_tokens):
        if not _SEPARATORS.isdisjoint(token):
            rule = "CTranslate2's file of a shortlist has no tokens with spaces, tabs or new lines"
            raise InputError(f"{rule}. Received: {token!r}. Export with `shortlist=False`.")
    rows = engine.shortlist.candidates
    always = engine.shortlist.candidates_of([EOS_ID])  # CTranslate2 looks up the tokens before EOS.

    def line(source_token, ids):
        return f"{source_token}\t{' '.join(target_tokens[id] for id in ids)}\n"

    # An empty source has the candidates of every sentence.
    lines = [line("", always)]
    lines += [line(token, ids) for token, ids in zip(source_tokens, rows, strict=False) if len(ids)]
    write_whole(path, "".join(lines))


def convert_to_ctranslate2(
    model: "Transformer",
    source_tokens: list[str],
    target_tokens: list[str],
    output: str | os.PathLike,
    max_positions: int = 1024,
    quantize: str = "none",
    banned_ids: Sequence[int] = (),
) -> None:
    """Writes a CTranslate2 model folder with the model's weights.

    CTranslate2 adds the source's EOS (`add_source_eos`), if the model reads it.

    Args:
        source_tokens: The token of each source id.
        target_tokens: The token of each target id.
        output: Path of the folder to make.
        max_positions: Length of CTranslate2's table of sinusoids, in tokens.
        quantize: Storage of the weights: "none", "float16" or "int8".
        banned_ids: Target ids whose logits become so small that no search chooses them.

    Raises `InputError` as `check_convertible`.
    """
    check_convertible(model.config)
    import ctranslate2

    config = model.config
    spec = _empty_spec(config, ctranslate2.specs)
    # CTranslate2 adds this epsilon in every normalization.
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon
    spec.config.add_source_eos = config.source_eos
    spec.register_source_vocabulary(list(source_tokens))
    spec.register_target_vocabulary(list(target_tokens))
    heads = {side: int(getattr(spec, side).num_heads) for side in SIDES}
    weights = _weights(model, heads, max_positions, banned_ids)
    suffix = "_pre" if config.normalize_first else ""
    tables: dict[Any, tuple] = {}  # Some variables are one table.

    def fill(owner, variable, value):
        names = marian_names(variable, suffix)
        if not names or not weights.keys() >= {*names}:
            return
        readers, kind = tuple(weights[name] for name in names), variable.rpartition("/")[2]
        scale = f"{kind}_scale"
        stored_in = quantize if quantize != "int8" or hasattr(owner, scale) else "none"
        if readers not in tables:
            tables[readers] = _stored(_rows_of(variable, readers), stored_in)
        numbers, scales = tables[readers]
        setattr(owner, kind, numbers)
        if scales is not None:
            setattr(owner, scale, scales)

    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = True
    # Each weight is stored in fewer bits before the next is read, so that no copy of all is made.
    ctranslate2.specs.model_spec.visit_spec(spec, fill)
    spec.validate()
    spec.optimize()  # Equal weights are written once.
    Path(output).mkdir(parents=True, exist_ok=True)
    with writing(Path(output, "model.bin")):
        spec.save(str(output))


def check_convertible(config: Any) -> None:
    """Raises `InputError` for a model that CTranslate2 cannot run, and without CTranslate2."""
    check_transformer(config, "A conversion to CTranslate2")
    check_portable(config, "A conversion to CTranslate2")
    for name in ("num_kv_heads", "sliding_window"):
        if getattr(config, name) is not None:
            raise InputError(
                f"A conversion to CTranslate2 has no `{name}`. "
                f"Received: {name}={getattr(config, name)!r}."
            )
    if config.decoder != "attention":
        raise InputError(
            "A conversion to CTranslate2 has self-attention in the decoder. Export other decoders "
            "for saved_model, litert, web or marian. "
            f"Received: model.decoder={config.decoder!r}."
        )
    require("ctranslate2", "CTranslate2", "ctranslate2")
    if config.activation not in _ACTIVATIONS:
        raise InputError(
            f"CTranslate2 knows the activations {', '.join(_ACTIVATIONS)}. "
            f"Received: activation={config.activation!r}."
        )


def _empty_spec(config, specs):
    options = {
        "pre_norm": config.normalize_first,
        "activation": _ACTIVATIONS[config.activation],
        "head_dim": config.key_dim,
    }
    sides = specs.transformer_spec
    heads = max(config.heads_of("encoder"))
    encoder = sides.TransformerEncoderSpec(config.num_encoder_layers, heads, **options)
    heads = max(config.heads_of("decoder") + config.heads_of("cross"))
    # Alignments are the mean over all heads of the last block; missing heads come last.
    options["alignment_heads"] = config.heads_of("cross")[-1]
    decoder = sides.TransformerDecoderSpec(config.num_decoder_layers, heads, **options)
    return specs.TransformerSpec(encoder, decoder)


def _weights(model, heads, max_positions, banned_ids):
    """Returns by Marian's names functions that give a weight in float32, some rows at a time."""
    from keras_transformer.base.large_variables import row_blocks
    from keras_transformer.layers.positions import position_table

    def block_weight(name, variable):
        return lambda: [matrix_of(name, variable, heads[name[:7]])]

    @functools.cache
    def table_rows(embedding):
        return lambda: (np.asarray(rows, "float32") for rows in row_blocks(embedding.embeddings))

    config = model.config
    weights = {name: block_weight(name, variable) for name, variable in named_weights(model)}
    length = max(max_positions, config.position_limit or 0)
    for side, embedding, positions in (
        ("encoder", model.source_embedding, model.source_positions),
        ("decoder", model.target_embedding, model.target_positions),
    ):
        table = position_table(positions, length, config.model_dim)
        weights[f"{side}_Wemb"] = table_rows(embedding)
        weights[f"{side}_Wpos"] = functools.partial(list, [table])
    projection, name = model.output_projection, "decoder_ff_logit_out_W"
    weights[name] = weights["decoder_Wemb"]
    if projection is not None:
        weights[name] = lambda: [np.asarray(projection.kernel, "float32").T]
    if model.output_bias is not None or banned_ids:
        bias = np.zeros(config.output_vocabulary_size, "float32")
        bias += 0 if model.output_bias is None else np.asarray(model.output_bias, "float32")
        bias[list(banned_ids)] = BANNED
        weights["decoder_ff_logit_out_b"] = functools.partial(list, [bias])
    return weights


def _rows_of(variable, weights):
    """Yields the numbers of a variable, some rows at a time."""
    if len(weights) == 1:
        return (join(variable, [rows]) for rows in weights[0]())
    return [join(variable, [rows for weight in weights for rows in weight()])]


class _Written(np.ndarray):
    """An array whose bytes CTranslate2 writes without a copy: embeddings take hundreds of MB."""

    def tobytes(self, order="C"):
        return np.ascontiguousarray(self).reshape(-1).view("uint8").data


def _stored(blocks, quantize):
    """Returns the numbers of some rows at a time as CTranslate2 stores them, and their factors."""
    scales = None
    if quantize == "int8":
        numbers, scales = zip(*map(_quantized, blocks), strict=True)
        scales = np.concatenate(scales)
    else:
        dtype = "float32" if quantize == "none" else quantize
        numbers = [rows.astype(dtype) for rows in blocks]
    return np.concatenate(numbers).view(_Written), scales


def _quantized(rows):
    """Returns rows in int8, and the factor of each."""
    largest = np.abs(rows).max(axis=1)
    # CTranslate2 does the same, so that no factor is infinite.
    largest = np.where(largest == 0, np.float32(127), np.maximum(largest, _LEAST))
    scales = np.float32(127) / largest
    return np.rint(rows * scales[:, None]).astype("int8"), scales
