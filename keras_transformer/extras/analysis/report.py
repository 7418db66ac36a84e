"""Writes files about a sentence and its model: a page, plots and tables."""

import base64
import csv
import functools
import hashlib
import io
import itertools
import json
import os
import pathlib
import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.files import OwnedFolder, replaced_file, write_whole
from keras_transformer.base.ids import BOS_ID
from keras_transformer.data import read_pairs
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.engine.translation import Translation
from keras_transformer.export.supported import check_transformer
from keras_transformer.extras.analysis import plots
from keras_transformer.extras.analysis.attention import (
    Attention,
    WordAlignment,
    attention,
    is_sink,
    pharaoh,
    word_alignment,
    words_of,
)
from keras_transformer.extras.analysis.heads import Head, head_table
from keras_transformer.extras.analysis.positions import position_vectors, sinusoids
from keras_transformer.extras.analysis.pruning import heads_off
from keras_transformer.runs.model_card import described_origin
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text.languages import Direction, languages_of_tags

# Maximum number of pairs that heads are measured on.
_PAIRS = 64
_NO_TOKENS = Direction()


class Inspection:
    """A source sentence, its translation and the attention of a model to both.

    Args:
        engine: `ModelEngine` of a `Transformer`, not frozen.
        source: A sentence.
        target: Its translation; by default the engine translates.
        source_language: As in `Engine.translate`, like `target_language`.
        **search_options: Options of `Engine.translate`.

    Attributes:
        translation: `Translation` with its tokens, computed at first use.
        direction: `Direction` of the sentence, with ids.
        attention: `Attention`, computed at first use; a row of the decoder belongs to the token
            that it writes. The tokens of languages have rows and columns too.

    Raises:
        InputError: The source is empty, or the model lacks a language; or, at first use, a text is
            too long.
    """

    def __init__(
        self,
        engine: ModelEngine,
        source: str,
        target: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        **search_options: Any,
    ):
        self.engine = engine
        self.source = source
        ids = engine.source_tokenizer.tokenize(source, add_eos=True)
        if len(ids) < 2:
            raise InputError(f"There is nothing to look at in an empty text. Received: {source!r}.")
        self._named: dict[str, Any] = {
            "source_language": source_language,
            "target_language": target_language,
        }
        (self.direction,) = engine.directions.of([source], **self._named)
        self._source_ids = self.direction.source(ids)
        self._target, self._search_options = target, search_options

    @functools.cached_property
    def translation(self) -> Translation:
        if self._target is None:
            return self._translated()
        return self.engine.score([self.source], [self._target], **self._named)[0]

    def _translated(self):
        return self.engine.translate([self.source], **self._named, **self._search_options)[0]

    @functools.cached_property
    def attention(self) -> Attention:
        decoder_ids = [BOS_ID, *self.direction.target(self.translation.ids)[:-1]]
        return attention(self.engine.model, self._source_ids, decoder_ids)

    @property
    def tokens(self) -> tuple[list[str], list[str]]:
        """Tokens of the source and of the translation, with the tokens of their languages."""
        target = self.direction.target_prefix
        return (
            self.engine.source_tokenizer.pieces_of(self._source_ids),
            [*self.engine.target_tokenizer.pieces_of(target), *self.translation.tokens],
        )

    def alignment(self, layer: int = -1) -> WordAlignment:
        """Aligns words by the mean of the heads of a layer's cross-attention."""
        translation = self.translation
        heads = self.engine.model.config.heads_of("cross")[layer]
        mean = self.direction.of_alignment(self.attention.cross[layer, :heads].mean(0))
        return word_alignment(mean, translation.source_tokens, translation.tokens)

    def without_heads(self, heads: Sequence[str]) -> Translation:
        """Translates without some heads, named as `encoder.0.1`."""
        with heads_off(self.engine.model, heads):
            return self._translated()

    def pictures(self) -> dict[str, Any]:
        """Returns figures of this sentence by file name."""
        figures = plots.plot_pair(self.attention, *self.tokens)
        attention_figures = {f"attention_{kind}.png": figure for kind, figure in figures.items()}
        return {**attention_figures, "alignment.png": plots.plot_alignment(self.alignment())}


def position_pictures(
    model: keras.Model, trained: int, other_model: keras.Model | None = None
) -> dict[str, Any]:
    """Returns figures of a `Transformer`'s positions by file name.

    Learned vectors are shown next to sinusoids of their width. Models without vectors of positions
    (rotary, relative or none) have no figures.

    Args:
        model: The trained `Transformer`.
        trained: Length of the longest text of its training, in tokens.
        other_model: A `Transformer` with other positions, to show next to it.
    """
    models = [candidate for candidate in (model, other_model) if candidate is not None]
    if not any(candidate.config.positions in ("sinusoidal", "learned") for candidate in models):
        return {}
    width, length = model.config.model_dim, 4 * trained
    vectors: dict[str, np.ndarray] = {"sinusoidal": sinusoids(length, width)}
    for candidate in models:
        if candidate.config.positions == "learned":
            layer = candidate.target_positions
            vectors["learned"] = position_vectors(layer, length, candidate.config.model_dim)
    shown_vectors = {name: rows[: min(trained, 128)] for name, rows in vectors.items()}
    return {
        "positions.png": plots.plot_encoding(shown_vectors),
        "positions_clock.png": plots.plot_clock_hands(vectors["sinusoidal"]),
        "positions_similarity.png": plots.plot_similarity(shown_vectors["sinusoidal"]),
        "positions_extrapolation.png": plots.plot_extrapolation(vectors, trained),
    }


def measure_heads(
    engine: ModelEngine,
    pairs: tuple[Sequence[str], Sequence[str]],
    direction: Direction = _NO_TOKENS,
) -> list[Head]:
    """Measures heads on the first pairs of a text that fit the model; if none fits, returns [].

    Pairs whose source does not begin with the token of a language have `direction`, with ids.
    """
    source, target = engine.source_tokenizer, engine.target_tokenizer
    ids = source.tokenize(pairs[0], add_eos=True)
    counts = np.bincount(np.concatenate(ids), minlength=source.vocabulary_size)
    limits = engine.max_source_length - direction.num_added, engine.max_target_length
    targets = (target.tokenize(text, add_eos=True) for text in pairs[1])  # only as many as needed
    fitting = (
        (text, *sides)
        for text, *sides in zip(pairs[0], ids, targets, strict=True)
        if all(1 < len(side) <= limit for side, limit in zip(sides, limits, strict=True))
    )
    pairs_of_ids = []
    for text, source_ids, target_ids in itertools.islice(fitting, _PAIRS):
        own = _NO_TOKENS if engine.directions.are_named_in(text) else direction
        pairs_of_ids.append((own.source(source_ids), own.target(target_ids)))
    return head_table(engine.model, pairs_of_ids, counts, batch_size=_PAIRS)


def heads_csv(table: Sequence[Head]) -> str:
    """Formats the table of heads as CSV, one line per head."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Head._fields)
    for head in table:
        writer.writerow(f"{value:.4f}" if isinstance(value, float) else value for value in head)
    return text.getvalue()


def write_report(
    folder: pathlib.Path,
    inspection: Inspection,
    trained: int,
    pairs: tuple[Sequence[str], Sequence[str]] | None = None,
    without_heads: Sequence[str] = (),
    other_model: keras.Model | None = None,
) -> dict[str, Any]:
    """Writes the files of an `Inspection`.

    Args:
        folder: An empty folder.
        inspection: A sentence and its attention, an `Inspection`.
        trained: Length of the longest text of the model's training, in tokens.
        pairs: Sources and targets to measure the heads on; without them there is no table.
        without_heads: Heads to translate without, as `encoder.0.1`.
        other_model: A model with other positions.

    Returns:
        A dict fit for JSON: the translation, its alignment, and the measurements.
    """
    engine = inspection.engine
    has_pictures = _write_pictures(folder, position_pictures, engine.model, trained, other_model)
    translation, alignment = inspection.translation, inspection.alignment()
    report = {
        "source": inspection.source,
        "translation": translation.text,
        "log_probability": translation.log_probability,
        "alignment": pharaoh(alignment.links()),
    }
    if without_heads:
        new = inspection.without_heads(without_heads)
        report["without_heads"] = {"heads": list(without_heads), "translation": new.text}
    title = f"{inspection.source} → {translation.text}"
    page = attention_page(inspection.attention, *inspection.tokens, title)
    write_whole(folder / "attention.html", page)
    write_whole(folder / "alignment.txt", f"{report['alignment']}\n")
    with replaced_file(folder / "attention.npz") as path:
        np.savez_compressed(path, **inspection.attention._asdict())
    table = measure_heads(engine, pairs, inspection.direction) if pairs is not None else []
    if table:
        write_whole(folder / "heads.csv", heads_csv(table))
        roles = [head.role for head in table]
        report["roles"] = {role: roles.count(role) for role in sorted(set(roles))}
    if has_pictures and _write_pictures(folder, inspection.pictures) and table:
        _write_pictures(folder, lambda: {"heads.png": plots.plot_heads(table)})
    report["files"] = sorted([*(path.name for path in folder.iterdir()), "report.json"])
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    write_whole(folder / "report.json", text)
    return report


def _write_pictures(folder, draw, *arguments):
    """Writes the figures that a function returns by file name; returns False without Matplotlib."""
    try:
        figures = draw(*arguments)
    except ImportError as error:
        warnings.warn(f"{error} Only the page and the tables are written.", stacklevel=3)
        return False
    for name, figure in figures.items():
        write_whole(folder / name, plots.png(figure))
    return True


def inspect_run(
    run: str | os.PathLike,
    source: str,
    output: str | os.PathLike,
    target: str | None = None,
    without_heads: Sequence[str] = (),
    corpus: Sequence[str | os.PathLike] | None = None,
    other_positions: str | os.PathLike | None = None,
    beam_size: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Shows a run's attention, positions and heads, for a sentence and a parallel text.

    Args:
        run: Path of the run folder.
        source: A sentence.
        output: Path of the folder to make.
        target: Its translation; by default the model translates.
        without_heads: Heads as `encoder.0.1`; the translation without them is shown too.
        corpus: Paths of a source and a target text to measure the heads on; by default the run's
            `samples.tsv`.
        other_positions: Path of a run with other positions.
        beam_size: Beam size; the recipe's by default.
        source_language: As in `Engine.translate`, like `target_language`.
        overwrite: Whether an earlier `output` of this function is replaced.

    Returns:
        The dict of `write_report`.

    Raises:
        InputError: The run, a file or an option is invalid.
    """
    folder = RunFolder.existing(run)
    inputs: dict[str, Any] = {"without_heads": without_heads}
    if other_positions is not None:
        inputs["other_model"] = RunFolder.existing(other_positions).model()
    pairs = read_pairs(*corpus) if corpus is not None else zip(*folder.sample_pairs(), strict=True)
    if sides := tuple(map(list, pairs)):
        inputs["pairs"] = sides
    decoding, model = folder.decoding(), folder.model()
    search_options = decoding.search_options
    if beam_size is not None:
        search_options["beam_size"] = beam_size
    check_transformer(model.config, "`inspect`")
    with OwnedFolder(output, "report.json").staged(overwrite) as staging:
        tokenizers = folder.tokenizers()
        options = folder.engine_options(lambda: tokenizers)
        engine = ModelEngine(model, *tokenizers, **options, with_xla=False)
        with heads_off(engine.model, without_heads):
            pass  # Missing heads raise an error before anything is compiled.
        named = {"source_language": source_language, "target_language": target_language}
        inspection = Inspection(engine, source, target, **named, **search_options)
        report = write_report(staging, inspection, folder.longest_trained(), **inputs)
        if corpus is not None and "roles" not in report:
            limits = f"{engine.max_source_length} and {engine.max_target_length} tokens"
            rule = f"`corpus` needs a pair of at most {limits}, without a blank side."
            raise InputError(f"{rule} Received: {', '.join(map(str, corpus))}.")
    origin = {"origin": described_origin(folder)} if folder.origin() else {}
    return {"output": str(output), **origin, **report}


def describe_run(run: str | os.PathLike) -> dict[str, Any]:
    """Returns sizes, languages, licence and origin of a run's model, fit for JSON.

    Raises:
        InputError: There is no run, or a file of it is invalid.
    """
    folder = RunFolder.existing(run)
    model, (source, target) = folder.model(), folder.tokenizers()
    languages = folder.languages() or languages_of_tags(source.tag_tokens)
    decoding, origin = folder.decoding(), folder.origin()
    described: dict[str, Any] = {
        "run": os.fspath(run),
        "kind": model.config.kind,
        "parameters": model.count_params(),
        "bytes": folder.model_file.stat().st_size,
        "model": model.config.to_dict(),
        "source_vocabulary_size": source.vocabulary_size,
        "target_vocabulary_size": target.vocabulary_size,
        "max_source_length": decoding.max_source_length,
        "max_target_length": decoding.max_target_length,
        "languages": None if languages is None else languages.to_dict(),
        "licence": origin.get("licence"),
        "origin": {name: origin[name] for name in ("name", "revision") if name in origin} or None,
    }
    return described


_COLUMNS = ("name", "label", "query", "key", "from", "to")
# Name, label, the sides of queries and keys, and the headings of both.
_KINDS = (
    ("encoder", "encoder", "source", "source", "source token", "attends to"),
    ("decoder", "decoder", "written", "read", "step that writes", "attends to what was read"),
    (
        "cross",
        "decoder to source",
        "written",
        "source",
        "step that writes",
        "attends to the source",
    ),
)


def attention_page(
    attention: Attention,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str] = (),
    title: str = "",
) -> str:
    """Returns an HTML page that shows all layers and heads in a browser, without a network.

    The target's tokens occur twice. As queries they label steps: the row of a token is the step
    that predicts it, which has read only the tokens before. As keys of the decoder they are the
    tokens that were read, one token later, after BOS.

    Args:
        attention: `Attention` of one pair: `target_ids` was BOS and all `target_tokens` except the
            last.
        source_tokens: Tokens of the source, with `"▁"` for a space, EOS included.
        target_tokens: Tokens that the decoder writes, EOS included.
        title: Title of the page, as text.

    Returns:
        HTML, in which weights have 16 bits.

    Raises:
        ValueError: The numbers of tokens differ from the numbers of rows and columns.
    """
    read_tokens = ["<s>", *target_tokens[:-1]] if target_tokens else []
    sides = {"source": list(source_tokens), "written": list(target_tokens), "read": read_tokens}
    kinds = []
    for row in _KINDS:
        name, _, query, key, *_ = row
        weights = getattr(attention, name)
        if not weights.size:
            continue
        if weights.shape[2:] != (len(sides[query]), len(sides[key])):
            raise ValueError(
                f"The {name} attention needs a token for each row and column. Received: weights of "
                f"shape {weights.shape}, {len(sides[query])} and {len(sides[key])} tokens."
            )
        rounded = np.round(weights * 65535).astype("<u2")
        kinds.append(
            {
                **dict(zip(_COLUMNS, row, strict=True)),
                "layers": weights.shape[0],
                "heads": weights.shape[1],
                "weights": base64.b64encode(rounded.tobytes()).decode(),
            }
        )
    described_sides = {name: _side(tokens) for name, tokens in sides.items()}
    values = json.dumps(
        {"title": title, "sides": described_sides, "kinds": kinds}, ensure_ascii=False
    )
    # `</script>` and `<!--` in a sentence must not end the element that holds it.
    escaped = values.replace("<", "\\u003c")
    return _template().replace(">DATA<", f">{escaped}<", 1)


def _side(tokens):
    sinks = [index for index, token in enumerate(tokens) if is_sink(token)]
    return {"tokens": tokens, "words": words_of(tokens), "sinks": sinks}


@functools.cache
def _template():
    """Returns the page without data; its policy allows only its own script and style."""
    page = (pathlib.Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = hashlib.sha256(content.encode()).digest()
        page = page.replace(f"{tag.upper()}_HASH", base64.b64encode(digest).decode())
    return page
