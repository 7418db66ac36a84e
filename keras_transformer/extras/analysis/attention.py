"""Attention weights of every layer and head, as arrays."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import keras
import numpy as np
import regex
from keras import ops

from keras_transformer.base.options import check_ids
from keras_transformer.layers import DecoderBlock, EncoderBlock, MultiHeadAttention
from keras_transformer.models.config import ModelConfig
from keras_transformer.models.stacks import TurnEncoder

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")


class Attention(NamedTuple):
    """The attention weights of one sentence pair, or of a batch with one more axis in front.

    Query `i` of `decoder` and `cross` is the step that reads `target_ids[i]` and predicts
    `target_ids[i + 1]`. To show what a word of the translation attended to, label the rows with the
    tokens that they predict. The keys of `decoder` are the tokens that were read, BOS first.

    Attributes:
        encoder: Float32 `(layers, heads, source, source)`.
        decoder: Float32 `(layers, heads, target, target)`.
        cross: Float32 `(layers, heads, target, source)`.

    A kind of attention that the model lacks has the shape `(0, 0, 0, 0)`. A layer with fewer heads
    than others of its kind has zeros for the missing heads.
    """

    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


def attention(
    model: keras.Model,
    source_ids: Sequence | np.ndarray,
    target_ids: Sequence | np.ndarray | None = None,
) -> Attention:
    """Returns the weights of a model's attention layers, without dropout.

    Args:
        model: `Transformer`, or any model that calls this package's layers. Attention inside an
            `EncoderBlock` or `DecoderBlock` has the block's kind. A bare `MultiHeadAttention` is
            `cross` if its query is not its value, else `decoder` if causal, else `encoder`.
        source_ids: Integer `(source,)`, or `(batch, source)` padded with 0.
        target_ids: Tokens that the decoder reads, BOS first, integer `(target,)` or
            `(batch, target)`; `None` for a model of one input.

    Returns:
        `Attention`. A row sums to 1 over the keys that its query may see; padding and later
        positions have 0.

    Raises:
        ValueError: Layers of one kind differ in lengths, so that they do not fit into one array.
            Or ids are float, or an id is outside the vocabulary.
    """
    config = getattr(model, "config", None)
    is_decoder = not getattr(config, "reads_sources", True)
    inputs_of_model = (None if is_decoder else source_ids, target_ids)
    sizes = (math.inf, math.inf)
    if isinstance(config, ModelConfig):
        sizes = config.vocabulary_size, config.output_vocabulary_size
    inputs = []
    for name, ids, size in zip(("source_ids", "target_ids"), inputs_of_model, sizes, strict=True):
        if ids is not None:
            check_ids(name, ids, size)
            inputs.append(ops.convert_to_tensor(np.asarray(ids, "int32")))
    single = len(inputs[0].shape) == 1
    inputs = [ops.expand_dims(ids, 0) for ids in inputs] if single else inputs
    with recorded(model) as recorded_weights:
        model(tuple(inputs) if len(inputs) > 1 else inputs[0], training=False)
    arrays = [
        _stacked(kind, [weights for layer_kind, weights in recorded_weights if layer_kind == kind])
        for kind in KINDS
    ]
    return Attention(*(array[0] if single and array.size else array for array in arrays))


def _stacked(kind, weights):
    """Stacks arrays `(batch, heads, query, key)` to `(batch, layers, heads, query, key)`."""
    if not weights:
        return np.zeros((0, 0, 0, 0), "float32")
    if len({array.shape[2:] for array in weights}) > 1:
        raise ValueError(
            f"The {kind} attention must have the same lengths in every layer. "
            f"Received: shapes {[array.shape for array in weights]}."
        )
    batch, _, *lengths = weights[0].shape
    max_heads = max(array.shape[1] for array in weights)
    stacked = np.zeros((batch, len(weights), max_heads, *lengths), "float32")
    for layer, array in enumerate(weights):
        stacked[:, layer, : array.shape[1]] = array
    return stacked


@contextlib.contextmanager
def recorded(model: keras.Model) -> Iterator[list[tuple[Kind, np.ndarray]]]:
    """Records the weights of attention layers that are called in the `with` block, in order.

    Yields a list, to which calls append `(kind, float32 (batch, heads, query, key))`. The calls
    must be eager: `model(inputs)`, not `model.predict`.
    """
    recorded_weights: list[tuple[Kind, np.ndarray]] = []
    kinds = kinds_of(model)

    def recording(layer, call):
        def record(query, value, *arguments, **options):
            outputs, weights = call(
                query, value, *arguments, **{**options, "return_attention_scores": True}
            )
            default_kind: Kind = "decoder" if options.get("use_causal_mask") else "encoder"
            if query is not value:
                default_kind = "cross"
            weights = ops.convert_to_numpy(ops.cast(weights, "float32"))
            recorded_weights.append((kinds.get(id(layer), default_kind), weights))
            return (outputs, weights) if options.get("return_attention_scores") else outputs

        return record

    layers = attention_layers(model)
    for layer in layers:
        setattr(layer, "call", recording(layer, layer.call))  # noqa: B010 - mypy: a method
    try:
        yield recorded_weights
    finally:
        for layer in layers:
            del layer.call  # The class' method is visible again.


def attention_layers(model: keras.Model) -> list[MultiHeadAttention]:
    """Lists every `MultiHeadAttention` of a model, in the order of its layers.

    Layers over the turns of a conversation are skipped, because they do not belong to the encoder.
    """
    return [layer for layer in _sublayers(model) if isinstance(layer, MultiHeadAttention)]


def _sublayers(layer):
    """Lists every layer inside a layer, once, in the order in which they were made."""
    # Keras' own `_flatten_layers` returns the layers of a list in reverse order.
    sublayers: dict[int, keras.layers.Layer] = {}
    for sublayer in layer._layers:
        if isinstance(sublayer, TurnEncoder):
            continue
        for inner in (sublayer, *_sublayers(sublayer)):
            sublayers.setdefault(id(inner), inner)
    return list(sublayers.values())


def kinds_of(model: keras.Model) -> dict[int, Kind]:
    """Maps the `id` of each attention layer in a block to its kind."""
    kinds: dict[int, Kind] = {}
    for block in _sublayers(model):
        if isinstance(block, EncoderBlock | DecoderBlock):
            kind: Kind = "encoder" if isinstance(block, EncoderBlock) else "decoder"
            kinds[id(block.token_mixer)] = kind
            if getattr(block, "cross_attention", None) is not None:
                kinds[id(block.cross_attention)] = "cross"
    return kinds


def entropy(weights: np.ndarray) -> np.ndarray:
    """Computes the entropy of each query's weights in bits: log2(n) for n keys of equal weight.

    From `(…, key)` to `(…)`; a row of zeros has the entropy 0.
    """
    logarithms = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logarithms).sum(-1)


def words_of(tokens: Sequence[str]) -> list[int]:
    """Numbers the word that each token belongs to, from 0.

    A word begins at `"▁"`, as SentencePiece writes a space; a special token (`<s>`, `</s>`) is a
    word of its own.
    """
    words: list[int] = []
    for index, token in enumerate(tokens):
        begins = token.startswith("▁") or is_special(token)
        after_special = index > 0 and is_special(tokens[index - 1])
        words.append(words[-1] + (begins or after_special) if words else 0)
    return words


def is_special(token: str) -> bool:
    """Returns True for padding, BOS and EOS."""
    return token in ("<s>", "</s>", "<pad>")


def is_sink(token: str) -> bool:
    """Returns True for an attention sink: a special token, or a mark that ends a sentence."""
    return is_special(token) or bool(regex.fullmatch(r"▁?\p{Sentence_Terminal}", token))


def merge_words(
    weights: np.ndarray, query_words: Sequence[int], key_words: Sequence[int]
) -> np.ndarray:
    """Merges tokens to words: the sum over a word's keys, the mean over its queries.

    The sums of rows do not change. Reference: Clark et al. 2019, section 4.1 (arXiv:1906.04341).

    Args:
        weights: Float `(…, query, key)`.
        query_words: Result of `words_of` for the queries.
        key_words: Result of `words_of` for the keys.

    Returns:
        Float `(…, query words, key words)`.
    """
    queries = np.eye(max(query_words) + 1, dtype="float32")[list(query_words)]
    keys = np.eye(max(key_words) + 1, dtype="float32")[list(key_words)]
    return (queries / queries.sum(0)).T @ weights @ keys


Links = frozenset[tuple[int, int]]
"""Pairs of a source word and a target word, both counted from 0."""


class WordAlignment(NamedTuple):
    """Attention of each target word to each source word.

    Attributes:
        weights: Float32 `(target words, source words)`, without the special tokens.
        source_words: The words of the columns.
        target_words: The words of the rows.
    """

    weights: np.ndarray
    source_words: list[str]
    target_words: list[str]

    def links(self) -> Links:
        """Links each target word with the source word that it attended to most."""
        if not self.weights.size:
            return frozenset()
        return frozenset((int(row.argmax()), i) for i, row in enumerate(self.weights))


def word_alignment(
    weights: np.ndarray, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> WordAlignment:
    """Merges attention between tokens to words: sum over a word's keys, mean of its queries.

    Args:
        weights: Float `(target, source)`, such as `Translation.alignment`, or a mean over heads of
            `Attention.cross`: the row of a token is the step that writes it.
        source_tokens: Tokens with `"▁"` for a space, EOS included.
        target_tokens: Tokens of the target, EOS included.
    """
    all_weights = merge_words(weights, words_of(target_tokens), words_of(source_tokens))
    source, target = _words(source_tokens), _words(target_tokens)
    word_weights = all_weights[np.ix_(list(target), list(source))]
    return WordAlignment(word_weights, list(source.values()), list(target.values()))


def _words(tokens):
    """Maps indices to words, without the special tokens."""
    texts: dict[int, str] = {}
    for word, token in zip(words_of(tokens), tokens, strict=True):
        if not is_special(token):
            texts[word] = texts.get(word, "") + token.removeprefix("▁")
    return texts


def pharaoh(links: Links) -> str:
    """Writes links as `0-0 1-2`, source first, in the order of the target."""
    ordered = sorted(links, key=lambda link: (link[1], link[0]))
    return " ".join(f"{source}-{target}" for source, target in ordered)
