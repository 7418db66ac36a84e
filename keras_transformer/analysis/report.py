"""Files about one sentence and its model: the page, pictures, tables."""

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

from keras_transformer.analysis import plots
from keras_transformer.analysis.attention import (
    Attention,
    WordAlignment,
    attention,
    is_sink,
    pharaoh,
    word_alignment,
    words_of,
)
from keras_transformer.analysis.heads import Head, head_table
from keras_transformer.analysis.positions import position_vectors, sinusoids
from keras_transformer.analysis.pruning import heads_off
from keras_transformer.data import read_pairs
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.engine.run_folder import RunFiles
from keras_transformer.engine.translation import Translation
from keras_transformer.errors import InputError
from keras_transformer.ids import BOS_ID
from keras_transformer.models.config import check_transformer
from keras_transformer.owned_folder import OwnedFolder

# Maximum number of pairs that heads are measured on.
_PAIRS = 64


class Inspection:
    """One source, its translation and the attention of a model to both.

    Args:
        engine: `ModelEngine` around a `Transformer`, not frozen.
        source: A sentence.
        target: Its translation; by default the one that the engine finds.
        **search: Options of `ModelEngine.translate`.

    Attributes:
        translation: `Translation`, with its tokens, searched for when it is first asked for.
        attention: `Attention`, rows of the decoder by the token that they write.

    Raises:
        InputError: The source is empty; when its translation is asked for: a text is too long.
    """

    def __init__(self, engine: ModelEngine, source: str, target: str | None = None, **search: Any):
        self.engine = engine
        self.source = source
        self._ids = engine.source_tokenizer.tokenize(source, add_eos=True)
        if len(self._ids) < 2:
            raise InputError(f"There is nothing to look at in an empty text. Received: {source!r}.")
        self._target, self._search = target, search

    @functools.cached_property
    def translation(self) -> Translation:
        if self._target is None:
            return self.engine.translate([self.source], **self._search)[0]
        return self.engine.score([self.source], [self._target])[0]

    @functools.cached_property
    def attention(self) -> Attention:
        read = [BOS_ID, *self.translation.ids[:-1]]
        return attention(self.engine.model, self._ids, read)

    def alignment(self, layer: int = -1) -> WordAlignment:
        """Words by the mean of the heads of a layer's attention to the source."""
        found = self.translation
        heads = self.engine.model.config.heads_of("cross")[layer]
        mean = self.attention.cross[layer, :heads].mean(0)
        return word_alignment(mean, found.source_tokens, found.tokens)

    def without_heads(self, heads: Sequence[str]) -> Translation:
        """Translates without some heads, named as `encoder.0.1`."""
        with heads_off(self.engine.model, heads):
            return self.engine.translate([self.source], **self._search)[0]

    def pictures(self) -> dict[str, Any]:
        """Figures of this sentence by the name of their file."""
        tokens = self.translation.source_tokens, self.translation.tokens
        figures = plots.plot_pair(self.attention, *tokens)
        named = {f"attention_{kind}.png": figure for kind, figure in figures.items()}
        return {**named, "alignment.png": plots.plot_alignment(self.alignment())}


def position_pictures(
    model: keras.Model, trained: int, other: keras.Model | None = None
) -> dict[str, Any]:
    """Figures of a `Transformer`'s positions by the name of their file.

    Learned vectors are next to the sinusoids of their width. Models without vectors of positions
    (rotary, relative or none) have no figures.

    Args:
        trained: The longest text of its training, in tokens.
        other: A `Transformer` with the other kind of positions, to be shown next to it.
    """
    models = [candidate for candidate in (model, other) if candidate is not None]
    if not any(candidate.config.positions in ("sinusoidal", "learned") for candidate in models):
        return {}
    width, length = model.config.model_dim, 4 * trained
    vectors: dict[str, np.ndarray] = {"sinusoidal": sinusoids(length, width)}
    for each in models:
        if each.config.positions == "learned":
            layer = each.target_positions
            vectors["learned"] = position_vectors(layer, length, each.config.model_dim)
    shown = {name: rows[: min(trained, 128)] for name, rows in vectors.items()}
    return {
        "positions.png": plots.plot_encoding(shown),
        "positions_clock.png": plots.plot_clock_hands(vectors["sinusoidal"]),
        "positions_similarity.png": plots.plot_similarity(shown["sinusoidal"]),
        "positions_extrapolation.png": plots.plot_extrapolation(vectors, trained),
    }


def measure_heads(engine: ModelEngine, pairs: tuple[Sequence[str], Sequence[str]]) -> list[Head]:
    """The table of heads over the first sentences of a parallel text that are not too long."""
    source, target = engine.source_tokenizer, engine.target_tokenizer
    ids = source.tokenize(pairs[0], add_eos=True)
    counts = np.bincount(np.concatenate(ids), minlength=source.vocabulary_size)
    limits = engine.max_source_length, engine.max_target_length
    targets = (target.tokenize(text, add_eos=True) for text in pairs[1])  # As many as are needed.
    fitting = (
        pair
        for pair in zip(ids, targets, strict=True)
        if all(1 < len(each) <= limit for each, limit in zip(pair, limits, strict=True))
    )
    pairs_of_ids = [*itertools.islice(fitting, _PAIRS)]
    return head_table(engine.model, pairs_of_ids, counts, batch_size=_PAIRS)


def heads_csv(table: Sequence[Head]) -> str:
    """The table of heads as CSV, a line a head."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Head._fields)
    for head in table:
        writer.writerow(f"{each:.4f}" if isinstance(each, float) else each for each in head)
    return text.getvalue()


def write_report(
    folder: pathlib.Path,
    inspection: Inspection,
    trained: int,
    pairs: tuple[Sequence[str], Sequence[str]] | None = None,
    without_heads: Sequence[str] = (),
    other: keras.Model | None = None,
) -> dict[str, Any]:
    """Writes the files of an `Inspection`.

    Args:
        folder: An empty folder.
        inspection: `Inspection`.
        trained: The longest text of the model's training, in tokens.
        pairs: Sources and targets to measure the heads on; without them there is no table.
        without_heads: Heads to translate without, as `encoder.0.1`.
        other: A model with the other kind of positions.

    Returns:
        A dict fit for JSON: the translation, its alignment, and the measurements.
    """
    engine = inspection.engine
    drawn = _write_pictures(folder, position_pictures, engine.model, trained, other)
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
    page = attention_page(
        inspection.attention, translation.source_tokens, translation.tokens, title
    )
    (folder / "attention.html").write_text(page, encoding="utf-8")
    (folder / "alignment.txt").write_text(f"{report['alignment']}\n", encoding="utf-8")
    np.savez_compressed(folder / "attention.npz", **inspection.attention._asdict())
    table = None
    if pairs is not None:
        table = measure_heads(engine, pairs)
        (folder / "heads.csv").write_text(heads_csv(table), encoding="utf-8")
        roles = [head.role for head in table]
        report["roles"] = {role: roles.count(role) for role in sorted(set(roles))}
    if drawn and _write_pictures(folder, inspection.pictures) and table:
        _write_pictures(folder, lambda: {"heads.png": plots.plot_heads(table)})
    report["files"] = sorted([*(path.name for path in folder.iterdir()), "report.json"])
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    (folder / "report.json").write_text(text, encoding="utf-8")
    return report


def _write_pictures(folder, draw, *arguments):
    """Writes the figures that a function gives by their names; False without Matplotlib."""
    try:
        figures = draw(*arguments)
    except ImportError as error:
        warnings.warn(f"{error} There are the page and the tables alone.", stacklevel=3)
        return False
    for name, figure in figures.items():
        (folder / name).write_bytes(plots.png(figure))
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
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes what a run's attention, positions and heads look like, on a sentence and a text.

    Args:
        run: Path of the run folder.
        source: A sentence.
        output: Path of the folder to make.
        target: Its translation; by default the one that the model finds.
        without_heads: Heads as `encoder.0.1`: the translation without them is shown as well.
        corpus: Paths of a source and a target text to measure the heads on; by default the run's
            `samples.tsv`.
        other_positions: Path of a run with the other kind of positions.
        beam_size: The recipe's by default.
        overwrite: Whether an earlier `output` of this function is replaced.

    Returns:
        The dict of `write_report`.

    Raises:
        InputError: The run, a file or an option is not what it must be.
    """
    folder = RunFiles.existing(run)
    inputs: dict[str, Any] = {"without_heads": without_heads}
    if other_positions is not None:
        inputs["other"] = RunFiles.existing(other_positions).model()
    pairs = read_pairs(*corpus) if corpus is not None else zip(*folder.sample_pairs(), strict=True)
    if sides := tuple(map(list, pairs)):
        inputs["pairs"] = sides
    decoding, model = folder.decoding(), folder.model()
    search = {**decoding.search, **({} if beam_size is None else {"beam_size": beam_size})}
    check_transformer(model.config, "`inspect`")
    with OwnedFolder(output, "report.json").staged(overwrite) as staging:
        options = decoding.engine_options(folder.turns())
        engine = ModelEngine(model, *folder.tokenizers(), **options, with_xla=False)
        with heads_off(engine.model, without_heads):
            pass  # Heads that are not there are named before anything is compiled.
        inspection = Inspection(engine, source, target, **search)
        report = write_report(staging, inspection, folder.longest_trained(), **inputs)
    return {"output": str(output), **report}


_COLUMNS = ("name", "label", "query", "key", "from", "to")
# Name, label, the sides of queries and keys, and what stands over both.
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
    """A page to look at every layer and head with, in a browser, without a network.

    The target's tokens stand twice. As queries they are what the steps write: the row of a token is
    the step that predicts it, which has read those before it and not the token itself. As keys of
    the decoder they are what was read, one place later, after the beginning of the sentence.

    Args:
        attention: `Attention` of one pair: `target_ids` was BOS and all `target_tokens` but the
            last one.
        source_tokens: Each token of the source, with `"▁"` for a space, EOS included.
        target_tokens: Each token that the decoder writes, EOS included.
        title: What stands at the top, as text.

    Returns:
        HTML. Weights are in it with 16 bits.

    Raises:
        ValueError: The tokens are not as many as the weights have rows and columns.
    """
    read = ["<s>", *target_tokens[:-1]] if target_tokens else []
    sides = {"source": list(source_tokens), "written": list(target_tokens), "read": read}
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
        whole = np.round(weights * 65535).astype("<u2")
        kinds.append(
            {
                **dict(zip(_COLUMNS, row, strict=True)),
                "layers": weights.shape[0],
                "heads": weights.shape[1],
                "weights": base64.b64encode(whole.tobytes()).decode(),
            }
        )
    described = {name: _side(tokens) for name, tokens in sides.items()}
    values = json.dumps({"title": title, "sides": described, "kinds": kinds}, ensure_ascii=False)
    # `</script>` and `<!--` in a sentence must not end the element that holds it.
    escaped = values.replace("<", "\\u003c")
    return _template().replace(">DATA<", f">{escaped}<", 1)


def _side(tokens):
    sinks = [place for place, token in enumerate(tokens) if is_sink(token)]
    return {"tokens": tokens, "words": words_of(tokens), "sinks": sinks}


@functools.cache
def _template():
    """The page without its data; its policy allows only the script and the style in it."""
    page = (pathlib.Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = hashlib.sha256(content.encode()).digest()
        page = page.replace(f"{tag.upper()}_HASH", base64.b64encode(digest).decode())
    return page
