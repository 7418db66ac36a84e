"""Plots: each function takes arrays and returns a Matplotlib figure."""

import importlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.base.errors import missing_package
from keras_transformer.extras.analysis.attention import KINDS, Attention, WordAlignment
from keras_transformer.extras.analysis.heads import Head
from keras_transformer.extras.analysis.positions import (
    distances,
    dot_products,
    frequencies,
    rotation,
    similarity_at,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Perceptually uniform, and readable for colour-blind people.
_COLOURS = "viridis"
_SMALL = 7  # font size of tokens, in points


def _matplotlib(module):
    """Imports a module of Matplotlib; never `pyplot`, which would choose a window system."""
    try:
        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        message = str(missing_package("Matplotlib, for pictures,", "matplotlib", "plots"))
        raise ImportError(message) from error


def _subplots(rows=1, columns=1, *, figsize):
    """Makes a figure and its axes `[rows, columns]`."""
    figure = _matplotlib("figure").Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _label(axis, tokens, rotation=0, indices=None):
    axis.set_ticks(range(len(tokens)) if indices is None else indices)
    axis.set_ticklabels([_shown(token) for token in tokens], rotation=rotation, fontsize=_SMALL)


def _shown(text):
    return text.replace("$", r"\$")  # Matplotlib reads formulas between dollars.


def plot_attention(
    weights: np.ndarray, query_tokens: Sequence[str], key_tokens: Sequence[str], title: str = ""
) -> "Figure":
    """Plots a heat map for each layer (rows) and head (columns).

    Args:
        weights: Float `(layers, heads, query, key)`, a field of `Attention`.
        query_tokens: A text for each query; in the decoder, the token that its step writes.
        key_tokens: A text for each key.
        title: Title of the figure.
    """
    layers, heads, queries, keys = weights.shape
    size = heads * max(1.6, 0.11 * keys) + 0.8, layers * max(1.6, 0.11 * queries) + 1.2
    figure, axes = _subplots(layers, heads, figsize=size)
    for (layer, head), axis in np.ndenumerate(axes):
        axis.imshow(weights[layer, head], vmin=0, vmax=1, cmap=_COLOURS, aspect="auto")
        axis.set_title(f"{layer}.{head}", fontsize=8)
        _label(axis.xaxis, key_tokens if layer == layers - 1 else (), rotation=90)
        _label(axis.yaxis, query_tokens if head == 0 else ())
    figure.suptitle(_shown(title))
    return figure


def plot_pair(
    attention: Attention, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> "dict[str, Figure]":
    """Calls `plot_attention` for each kind of attention of a model; returns figures by kind.

    Args:
        attention: `Attention` of a decoder that read BOS and all `target_tokens` except the last.
        source_tokens: Tokens of the source.
        target_tokens: Tokens that the decoder writes.
    """
    written_tokens, read_tokens = list(target_tokens), ["<s>", *target_tokens[:-1]]
    sides = (
        (source_tokens, source_tokens),
        (written_tokens, read_tokens),
        (written_tokens, source_tokens),
    )
    titles = "encoder", "decoder", "decoder to source"
    return {
        kind: plot_attention(weights, *tokens, title)
        for kind, weights, tokens, title in zip(KINDS, attention, sides, titles, strict=True)
        if weights.size
    }


def plot_alignment(alignment: WordAlignment) -> "Figure":
    """Plots words of the target (rows) over words of the source, with a dot on each link."""
    rows, columns = max(alignment.weights.shape[0], 1), max(alignment.weights.shape[1], 1)
    figure, ((axis,),) = _subplots(figsize=(1.5 + 0.3 * columns, 1.5 + 0.3 * rows))
    if alignment.weights.size:
        axis.imshow(alignment.weights, vmin=0, vmax=1, cmap=_COLOURS)
        for source, target in alignment.links():
            axis.plot(source, target, "o", color="white", markeredgecolor="black", markersize=5)
    _label(axis.xaxis, alignment.source_words, rotation=90)
    _label(axis.yaxis, alignment.target_words)
    axis.set(xlabel="source", ylabel="translation")
    return figure


def plot_encoding(vectors: Mapping[str, np.ndarray]) -> "Figure":
    """Plots vectors of positions `(length, width)`, side by side under their names."""
    figure, axes = _subplots(1, len(vectors), figsize=(1 + 5 * len(vectors), 4))
    for axis, (name, rows) in zip(axes[0], vectors.items(), strict=True):
        largest = np.nanmax(np.abs(rows))
        image = axis.imshow(rows, vmin=-largest, vmax=largest, cmap="RdBu", aspect="auto")
        axis.set(title=name, xlabel="feature", ylabel="position")
        figure.colorbar(image, ax=axis)
    return figure


def plot_clock_hands(vectors: np.ndarray, positions: int = 12, pairs: int = 8) -> "Figure":
    """Plots pairs of a sine and a cosine as clock hands that turn from position to position.

    Args:
        vectors: Float `(length, width)`, sinusoidal.
        positions: Number of positions shown, from 0.
        pairs: Number of pairs, of the faster half; the slower half hardly moves.
    """
    chosen_pairs = np.unique(np.linspace(0, vectors.shape[1] // 4 - 1, pairs).astype(int))
    positions = min(positions, len(vectors))
    size = (1.6 + 0.6 * positions, 1 + 0.6 * len(chosen_pairs))
    figure, ((axis,),) = _subplots(figsize=size)
    periods = 2 * np.pi / frequencies(vectors.shape[1])
    circle = np.linspace(0, 2 * np.pi, 60)
    circle, hands = np.stack([np.cos(circle), np.sin(circle)], axis=1), []
    # Centres are 2.4 radii apart. A hand begins at the top, as on a clock.
    indices = 2.4 * np.array([*np.ndindex(len(chosen_pairs), positions)])[:, ::-1] * (1, -1)
    for (row, position), index in zip(
        np.ndindex(len(chosen_pairs), positions), indices, strict=True
    ):
        hands.append(
            [index, index + vectors[position, 2 * chosen_pairs[row] : 2 * chosen_pairs[row] + 2]]
        )
    circles = indices[:, None] + circle
    lines = _matplotlib("collections").LineCollection
    axis.add_collection(lines(circles, colors="0.7", linewidths=0.7))
    axis.add_collection(lines(hands, colors="#0072B2", linewidths=1.6))
    axis.autoscale_view()
    labels = [f"pair {pair}\nonce in {periods[pair]:,.0f}" for pair in chosen_pairs]
    _label(axis.yaxis, labels, 0, -2.4 * np.arange(len(chosen_pairs)))
    _label(axis.xaxis, [f"{index}" for index in range(positions)], 0, 2.4 * np.arange(positions))
    axis.set(aspect="equal", xlabel="position")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return figure


def plot_similarity(vectors: np.ndarray, offset: int = 3) -> "Figure":
    """Plots dot products, distances, both by offset, and the matrix that moves by `offset`."""
    figure, axes = _subplots(2, 2, figsize=(10, 8))
    products, gaps = dot_products(vectors), distances(vectors)
    matrices = (("dot product", products), ("distance", gaps))
    for axis, (name, matrix) in zip(axes[0], matrices, strict=True):
        image = axis.imshow(matrix, cmap=_COLOURS)
        axis.set(title=name, xlabel="position", ylabel="position")
        figure.colorbar(image, ax=axis)
    middle = len(vectors) // 2
    offsets = np.arange(len(vectors)) - middle
    axes[1, 0].plot(offsets, products[middle], color="#0072B2", label="dot product")
    axes[1, 0].plot(offsets, gaps[middle], color="#D55E00", label="distance")
    axes[1, 0].set(title=f"from position {middle}", xlabel="offset")
    axes[1, 0].legend()
    if vectors.shape[1] % 2 == 0:
        # A larger matrix would look like a thin diagonal.
        matrix = rotation(vectors.shape[1], offset)[:16, :16]
        image = axes[1, 1].imshow(matrix, vmin=-1, vmax=1, cmap="RdBu")
        axes[1, 1].set(title=f"what moves any position by {offset} (16 features)")
        figure.colorbar(image, ax=axes[1, 1])
    return figure


def plot_extrapolation(vectors: Mapping[str, np.ndarray], trained: int) -> "Figure":
    """Plots the similarity of neighbours, within the lengths of the training and beyond.

    Args:
        vectors: Float `(length, width)` by name, NaN for positions without a vector.
        trained: First position after the lengths of the training.
    """
    size = (1 + 5 * len(vectors), 3.6)
    figure, axes = _subplots(1, len(vectors), figsize=size)
    for axis, (name, rows) in zip(axes[0], vectors.items(), strict=True):
        for offset, style in ((1, "-"), (2, "--"), (4, "-."), (8, ":")):
            axis.plot(similarity_at(rows, offset), style, label=f"{offset} apart")
        axis.axvline(trained, color="0.4", linewidth=0.8)
        axis.text(trained, 1.04, " past training", fontsize=8)
        has_no_vector = np.isnan(rows[:, 0])
        if has_no_vector.any():
            axis.axvspan(has_no_vector.argmax(), len(rows), color="0.85", label="no vector")
        axis.set(title=name, xlabel="position", ylim=(-0.5, 1.15), ylabel="cosine to a neighbour")
        axis.legend(fontsize=7, loc="lower left")
    return figure


def plot_heads(table: Sequence[Head]) -> "Figure":
    """Plots importance, confidence and roles by layer and head, one row per kind of attention."""
    measures = {"importance": "magma", "confidence": _COLOURS, "previous": "Blues", "next": "Blues"}
    measures["rare"] = "Oranges"
    titles = {"previous": "token before", "next": "token after", "rare": "rarest token"}
    kinds = [kind for kind in KINDS if any(head.name.startswith(kind) for head in table)]
    size = (0.4 + 2.1 * len(measures), 0.8 + 2.3 * len(kinds))
    figure, axes = _subplots(len(kinds), len(measures), figsize=size)
    for row, kind in enumerate(kinds):
        heads_of_kind = {
            tuple(map(int, head.name.split(".")[1:])): head
            for head in table
            if head.name.startswith(kind)
        }
        layers, heads = (max(indices) + 1 for indices in zip(*heads_of_kind, strict=True))
        for axis, (measure, colours) in zip(axes[row], measures.items(), strict=True):
            values = np.full((layers, heads), np.nan)
            for index, head in heads_of_kind.items():
                values[index] = getattr(head, measure)
            if np.isnan(values).all():
                axis.set_axis_off()
                continue
            maximum = np.nanmax(values) if measure == "importance" else 1
            axis.imshow(values, vmin=0, vmax=maximum, cmap=colours)
            _numbers(axis, values, maximum, dark_first=colours in ("magma", _COLOURS))
            axis.set(xticks=range(heads), yticks=range(layers), title=titles.get(measure, measure))
            axis.set(xlabel="head", ylabel=f"{kind} layer" if measure == "importance" else "")
    return figure


def _numbers(axis, values, maximum, dark_first):
    for (row, column), value in np.ndenumerate(values):
        light = (value < 0.6 * maximum) == dark_first
        text = {"ha": "center", "va": "center", "fontsize": 7}
        axis.text(column, row, f"{value:.2f}", color="white" if light else "black", **text)


def png(figure: Any, dots_per_inch: int = 120) -> bytes:
    """Renders a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.set_dpi(dots_per_inch)
    # `savefig` would draw the figure twice.
    _matplotlib("backends.backend_agg").FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
