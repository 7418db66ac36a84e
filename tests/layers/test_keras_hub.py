"""What the page "Coming from KerasHub" says, checked with KerasHub: its programs and its tables."""

import ast
import inspect
import pathlib
import re

import numpy as np
import pytest
from keras import ops
from reference import float64

from keras_transformer import Perplexity
from keras_transformer.decoding import SearchModel
from keras_transformer.decoding.search import search
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    LearnedPositionalEmbedding,
    MultiHeadAttention,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)

hub = pytest.importorskip("keras_hub", reason="comes with the extra [peers]")

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "coming_from_keras_hub.md").read_text(encoding="utf-8")
WIDTH, HEADS, VOCABULARY = 12, 3, 11
IDS = np.array([[5, 7, 3, 0, 0], [2, 4, 6, 8, 9]])


def table_below(heading):
    rows = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in re.findall(r"^\| (.*) \|$", rows, flags=re.MULTILINE)]
    return {row[0]: row[1:] for row in rows[1:]}


NAMES, ARGUMENTS = table_below("Names"), table_below("Arguments")


@pytest.fixture
def vectors():
    return np.random.default_rng(1).normal(size=(2, 5, WIDTH)).astype("float32")


def calls_of(text):
    """Name, names of the arguments by position, and those by name, of each call in backticks."""
    for code in re.findall(r"`([^`]*\))`", text):
        for node in ast.walk(ast.parse(code.removeprefix("metrics."))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = [part.id for part in node.args if isinstance(part, ast.Name)]
                yield node.func.id, names, [keyword.arg for keyword in node.keywords]


def parameters_of(function):
    return list(inspect.signature(function).parameters)


def test_names_of_the_table_take_the_arguments_that_it_shows():
    theirs = {**vars(hub.layers), **vars(hub.samplers), **vars(hub.metrics)}
    sides = [theirs, globals()]
    shown = [
        (side[name], *names)
        for row, (ours, _) in NAMES.items()
        for side, text in zip(sides, (row, ours), strict=True)
        for name, *names in calls_of(text)
        if name[0].isupper()
    ]
    assert len(shown) > 18
    for layer, positions, keywords in shown:
        names = parameters_of(EncoderBlock if layer is DecoderBlock else layer)
        assert positions == names[: len(positions)] and {*keywords} <= {*names}


def test_programs_of_the_page_run():
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "coming_from_keras_hub.md", "exec"), {})


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_a_decoder_carries_over_by_its_configuration_and_its_weights(
    vectors, normalize_first, count
):
    initializers = {"kernel_initializer": "he_normal", "bias_initializer": "ones"}
    options = {"dropout": 0.25, "activation": "gelu", "layer_norm_epsilon": 0.5, **initializers}
    theirs = hub.layers.TransformerDecoder(
        13, HEADS, normalize_first=normalize_first, name="theirs", **options
    )
    inputs = [vectors, np.concatenate([vectors, vectors], axis=1)][:count]
    expected = theirs(*inputs)
    ours = DecoderBlock.from_config(theirs.get_config())
    ours(*inputs)
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(float64(ours(*inputs)), float64(expected), atol=2e-6)
    assert (ours.name, ours.feed_forward_dropout) == ("theirs", 0)
    assert (ours.dropout, ours.attention_dropout) == (0.25, 0.25)
    config, their_config = ours.get_config(), theirs.get_config()
    for name in initializers:
        assert config[name]["class_name"] == their_config[name]["class_name"]


def test_an_encoder_gives_its_configuration():
    theirs = hub.layers.TransformerEncoder(13, HEADS, dropout=0.25, normalize_first=True)
    ours = EncoderBlock.from_config(theirs.get_config())
    assert (ours.intermediate_dim, ours.num_heads, ours.normalize_first) == (13, HEADS, True)
    assert (ours.dropout, ours.attention_dropout) == (0.25, 0.25)


def test_attention_carries_over(vectors):
    theirs, ours = hub.layers.CachedMultiHeadAttention(HEADS, 4), MultiHeadAttention(HEADS, 4)
    mask = (IDS != 0)[:, None]
    expected = theirs(vectors, vectors, None, mask)
    ours(vectors, vectors)
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(ours(vectors, vectors, None, mask), expected, atol=2e-6)


def test_positional_layers_give_their_sum(vectors):
    theirs = vectors + hub.layers.SinePositionEncoding()(vectors)
    np.testing.assert_allclose(SinusoidalPositionalEncoding()(vectors), theirs, atol=1e-6)
    theirs, ours = hub.layers.PositionEmbedding(7), LearnedPositionalEmbedding(7)
    expected = vectors + theirs(vectors)
    ours(vectors)
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(ours(vectors), expected, atol=1e-6)


def test_token_and_position_embedding_carries_over_with_a_scaled_table():
    theirs = hub.layers.TokenAndPositionEmbedding(VOCABULARY, 7, WIDTH)
    expected = theirs(IDS)
    tokens, positions = TokenEmbedding(VOCABULARY, WIDTH), LearnedPositionalEmbedding(7)
    positions(tokens(IDS))
    (table,) = theirs.token_embedding.get_weights()
    tokens.set_weights([table / WIDTH**0.5])
    positions.set_weights(theirs.position_embedding.get_weights())
    np.testing.assert_allclose(positions(tokens(IDS)), expected, atol=1e-6)


def test_rotary_positions_are_theirs(vectors):
    layer, rotate = MultiHeadAttention(HEADS, 4, positions="rotary"), hub.layers.RotaryEmbedding()
    outputs = layer(vectors, vectors)
    query, key, value, project = layer.projections
    scores = ops.einsum("bqhd,bkhd->bhqk", rotate(query(vectors)), rotate(key(vectors)))
    weights = ops.softmax(scores / 2)
    expected = project(ops.einsum("bhqk,bkhd->bqhd", weights, value(vectors)))
    np.testing.assert_allclose(outputs, expected, atol=2e-6)


def test_alibi_under_a_causal_mask_is_theirs(vectors):
    layer, add_bias = MultiHeadAttention(HEADS, 4, positions="alibi"), hub.layers.AlibiBias()
    outputs = layer(vectors, vectors, use_causal_mask=True)
    query, key, value, project = layer.projections
    scores = add_bias(ops.einsum("bqhd,bkhd->bhqk", query(vectors), key(vectors)) / 2)
    weights = ops.softmax(ops.where(np.tril(np.ones((5, 5), bool)), scores, -1e9))
    expected = project(ops.einsum("bhqk,bkhd->bqhd", weights, value(vectors)))
    np.testing.assert_allclose(outputs, expected, atol=2e-6)


class Table(SearchModel):
    """A model whose next token depends only on the last token."""

    def __init__(self):
        self.logits = np.random.default_rng(3).normal(size=(VOCABULARY, VOCABULARY)) * 2
        self.logits[:, :3] = -30  # neither padding nor BOS nor an end
        self.logits = self.logits.astype("float32")

    def start_decoding(self, source_ids, capacity, num_beams=1):
        return ops.zeros((ops.shape(source_ids)[0], num_beams))

    def step(self, ids, cache):
        return ops.take(self.logits, ids, axis=0), cache

    def reorder(self, cache, parents):
        return cache

    def next(self, prompt, cache, index):
        """What KerasHub's samplers call."""
        return ops.take(self.logits, prompt[:, index - 1], axis=0), None, cache


@pytest.mark.parametrize("beam_size", [1, 5])
def test_a_sampler_finds_what_the_search_of_its_row_finds(beam_size):
    name = "GreedySampler()" if beam_size == 1 else "BeamSampler(num_beams=5)"
    options = dict(beam_size=1) if beam_size == 1 else dict(beam_size=5, length_penalty=0.0)
    shown = ", ".join(f"{key}={value}" for key, value in options.items())
    assert NAMES[f"`{name}`"][0] == f"`search(model, ids, {shown})`"
    model, sampler = Table(), eval(f"hub.samplers.{name}")
    prompt = np.array([[1] + [0] * 6], "int32")
    expected = sampler(model.next, prompt, cache=ops.zeros((1, 1)), index=1)
    options["allow_unknown"] = True
    ids = search(model, np.array([[5, 7]]), max_length=6, **options).ids
    np.testing.assert_array_equal(ids[0, 0], ops.convert_to_numpy(expected)[0, 1:])


@pytest.mark.parametrize("name", ["TopKSampler(k=5)", "TopPSampler(p=0.1)", "RandomSampler()"])
def test_a_filter_of_samples_is_an_option_of_the_search(name):
    (call,) = re.findall(r"search\(model, ids, (.*)\)`", NAMES[f"`{name}`"][0])
    options = eval(f"dict({call})")
    model = Table()
    ids = search(model, np.full((64, 2), 5), max_length=1, **options, seed=1).ids
    logits = np.delete(model.logits[1], [0, 1, 2, 3])
    tokens = np.argsort(-logits) + 4
    most = {"TopKSampler(k=5)": 5, "TopPSampler(p=0.1)": 1, "RandomSampler()": len(tokens)}[name]
    assert {*ops.convert_to_numpy(ids).ravel().tolist()} <= {*tokens[:most].tolist()}


def test_perplexity_is_theirs():
    logits = np.random.default_rng(2).normal(size=(2, 5, VOCABULARY)).astype("float32")
    theirs = hub.metrics.Perplexity(from_logits=True, mask_token_id=0)
    ours = Perplexity()
    theirs.update_state(IDS, logits)
    ours.update_state(IDS, logits)
    assert float(ours.result()) == pytest.approx(float(theirs.result()), rel=1e-5)


def test_arguments_by_position_differ_as_the_table_says():
    blocks = (hub.layers.TransformerEncoder, EncoderBlock)
    assert [parameters_of(block)[4] for block in blocks] == [
        "layer_norm_epsilon",
        "normalize_first",
    ]
    row = ARGUMENTS["third to sixth call argument of the decoder"]
    for text, layer in zip(row, (hub.layers.TransformerDecoder, DecoderBlock), strict=True):
        assert re.findall(r"`(\w+)`", text) == parameters_of(layer.call)[3:7]
    shown = ARGUMENTS["call arguments of positional layers"][0]
    for layer in (
        hub.layers.SinePositionEncoding,
        hub.layers.PositionEmbedding,
        SinusoidalPositionalEncoding,
        LearnedPositionalEmbedding,
    ):
        assert parameters_of(layer.call)[1:] == re.findall(r"`(\w+)`", shown)
    for layer in (hub.layers.CachedMultiHeadAttention, MultiHeadAttention):
        assert parameters_of(layer.call)[4] == "attention_mask"


def test_defaults_differ_as_the_table_says(vectors):
    theirs, ours = hub.layers.TransformerEncoder(13, HEADS, 0.5), EncoderBlock(13, HEADS, 0.5)
    theirs(vectors), ours(vectors)
    rates = theirs._self_attention_layer.get_config(), ours.self_attention.get_config()
    assert [rate["dropout"] for rate in rates] == [0.5, 0.0]
    for layer, has_mask in (
        (hub.layers.ReversibleEmbedding(VOCABULARY, WIDTH), False),
        (TokenEmbedding(VOCABULARY, WIDTH), True),
    ):
        assert (getattr(layer(IDS), "_keras_mask", None) is not None) == has_mask
    for layer, has_mask in (
        (hub.layers.SinePositionEncoding(), False),
        (hub.layers.PositionEmbedding(7), False),
        (SinusoidalPositionalEncoding(), True),
        (LearnedPositionalEmbedding(7), True),
    ):
        hidden = layer(TokenEmbedding(VOCABULARY, WIDTH)(IDS))
        assert (getattr(hidden, "_keras_mask", None) is not None) == has_mask
    floats = (IDS != 0).astype("float32")
    np.testing.assert_array_equal(theirs(vectors, floats), theirs(vectors, floats != 0))
    with pytest.raises(ValueError):
        ours(vectors, floats)


def test_new_embeddings_have_the_sizes_of_the_table():
    ids = np.arange(500)[None]
    theirs, ours = hub.layers.ReversibleEmbedding(500, 64), TokenEmbedding(500, 64)
    assert np.std(theirs(ids)) == pytest.approx(0.03, abs=0.002)
    assert np.std(ours(ids)) == pytest.approx(1, abs=0.02)
