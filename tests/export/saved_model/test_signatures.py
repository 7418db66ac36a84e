import numpy as np
import pytest
from device_plans import ONE_GRAPH

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID
from keras_transformer.decoding.search_options import FILTERS, DecodingOptions
from keras_transformer.engine import ModelEngine
from keras_transformer.export.saved_model.export_options import SavedModelOptions
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.export.signature import SIGNATURES
from keras_transformer.models import LanguageModel
from keras_transformer.models.config import LanguageModelConfig

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore:.*tokens and were cut")]

ODD = ["", " \t\n", "\u3000", "Grüße, señor!", "你好，世界 😀", "e\u0301\u200b ﬁ a\x00b\tc"]
# Batches below have three or four texts that are not blank: one shape, compiled once.
TOO_LONG = "two dogs eats an apple near the river and " * 5
LIVE = {"length_penalty": 0.8, "long_input": "truncate"}


def signature_inputs(name, texts):
    """Inputs of a call of a signature, as nested lists."""
    if name == "score":
        return {"source": texts, "target": [" ".join(text.split()[::-1]) for text in texts]}
    if name == "sample":
        seeds = [7919 * row for row in range(len(texts))]
        return {"text": texts, **sampling(len(texts), seed=seeds, top_k=[7] * len(texts))}
    return {"text": texts}


def in_session(folder):
    """`call(signature, inputs)` by the loader of TensorFlow Serving and the C library."""
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(folder))
        handles = [op for op in session.graph.get_operations() if op.type == "VarHandleOp"]
        ready = [tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles]
        assert handles and all(session.run(ready))

    def call(name, inputs):
        signature = meta.signature_def[name]
        feeds = {signature.inputs[key].name: values for key, values in inputs.items()}
        outputs = {key: info.name for key, info in signature.outputs.items()}
        return session.run(outputs, feeds)

    return call


@pytest.fixture(scope="module")
def session(verified_report):
    """The signatures that XLA compiles; `signatures` are ordinary graphs."""
    return in_session(verified_report.folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_the_same_in_both_loaders(name, report, session, signatures, texts):
    """Odd texts, none, and one of more tokens than the model takes."""
    too_long = " ".join(texts[:9])
    described = report.manifest["signatures"][name]
    for batch in ([*ODD, too_long], []):
        inputs = signature_inputs(name, batch)
        tensors = {}
        for key, spec in signatures[name].structured_input_signature[1].items():
            shape = None if inputs[key] else [0] * spec.shape.rank
            tensors[key] = tf.constant(inputs[key], spec.dtype, shape)
        through_module = {key: value.numpy() for key, value in signatures[name](**tensors).items()}
        arrays = {key: value.numpy() for key, value in tensors.items()}
        through_session = session(name, arrays)
        assert set(through_module) == set(through_session) == set(described["outputs"])
        for key, ours in through_module.items():
            theirs, shape = through_session[key], described["outputs"][key]["shape"]
            assert ours.dtype == theirs.dtype and len(ours) == len(batch)
            assert len(ours.shape) == len(shape)
            assert all(size in (None, real) for size, real in zip(shape, ours.shape, strict=True))
            if ours.dtype == object or ours.dtype.kind == "i":
                np.testing.assert_array_equal(theirs, ours)
            else:
                np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def chosen(texts):
    """Four of different lengths, a blank one and one that is cut among them."""
    return [texts[30], "\u3000", TOO_LONG, texts[7]]


@pytest.fixture(scope="module")
def call(signatures):
    """`call(name, **inputs)`: NumPy arrays, strings decoded."""

    def call(name, **inputs):
        specs = signatures[name].structured_input_signature[1]
        tensors = {key: tf.constant(value, specs[key].dtype) for key, value in inputs.items()}
        arrays = {key: tensor.numpy() for key, tensor in signatures[name](**tensors).items()}
        decode = np.vectorize(lambda text: text.decode(), otypes=[object])
        is_text = {key: array.dtype == object and array.size for key, array in arrays.items()}
        return {key: decode(x) if is_text[key] else x for key, x in arrays.items()}

    return call


def sampling(count, **options):
    neutral = {name: [getattr(DecodingOptions, name)] * count for name in FILTERS}
    return {"seed": [7] * count, **neutral, **options}


def test_samples_of_each_sentences_own_seed_and_options(engine, call, chosen):
    options = [(1.0, 0, 1.0), (1.0, 0, 1.0), (0.5, 3, 1.0), (1.5, 0, 0.75)]
    temperature, top_k, top_p = zip(*options, strict=True)
    seeds = [3, 5, 7, 11]
    inputs = {"seed": seeds, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    result = call("sample", text=chosen, **sampling(4, **inputs))
    for row, (text, seed) in enumerate(zip(chosen, seeds, strict=True)):
        names = ("temperature", "top_k", "top_p")
        live = dict(zip(names, options[row], strict=True))
        (expected,) = engine.translate([text], sampling=True, seed=seed, **live, **LIVE)
        assert result["translation"][row] == expected.text
        assert result["score"][row] == pytest.approx(expected.score, rel=1e-4)
    order = [2, 0, 3, 1]
    inputs = {name: [values[i] for i in order] for name, values in inputs.items()}
    again = call("sample", text=[chosen[i] for i in order], **sampling(4, **inputs))
    assert again["translation"].tolist() == [result["translation"][i] for i in order]
    assert len(set(call("sample", text=[chosen[0]] * 4, **sampling(4, seed=seeds))["score"])) > 1


def test_a_temperature_of_nothing_is_greedy_search_and_none_is_refused(call, chosen):
    greedy = call("greedy", text=chosen)["translation"].tolist()
    for cold in (0.0, -1.0, np.nan):
        result = call("sample", text=chosen, **sampling(4, temperature=[cold] * 4))
        assert result["translation"].tolist() == greedy
    whole = call("sample", text=chosen, **sampling(4))["score"]
    for wild in ({"top_p": [7.0] * 4}, {"top_p": [np.nan] * 4}, {"top_k": [-3] * 4}):
        np.testing.assert_array_equal(
            call("sample", text=chosen, **sampling(4, **wild))["score"], whole
        )


def test_scores_of_given_translations_cut_where_they_are_too_long(engine, call, chosen):
    targets = [chosen[3], "a man", chosen[0], TOO_LONG]
    result = call("score", source=chosen, target=targets)
    whole = (engine.source_tokenizer, chosen, 13), (engine.target_tokenizer, targets, 17)
    ids = [
        [row[: limit - 1] + [EOS_ID] if len(row) > limit else row for row in rows]
        for rows, limit in ((side.tokenize(texts, add_eos=True), n) for side, texts, n in whole)
    ]
    expected = engine.score(*ids, length_penalty=0.8)
    for name in ("score", "log_probability"):
        scores = [getattr(translation, name) for translation in expected]
        np.testing.assert_allclose(result[name], scores, rtol=1e-4)


def test_alignments_have_the_tokens_of_both_sides_and_end_in_zeros_and_empty_tokens(
    engine, call, chosen
):
    result = call("align", text=chosen)
    expected = engine.translate(chosen, beam_size=3, alignment=True, **LIVE)
    for row, translation in enumerate(expected):
        alignment = result["alignment"][row]
        target, source = len(translation.tokens), len(translation.source_tokens)
        assert not alignment[target:].any() and not alignment[:, source:].any()
        for side, tokens in ("source", translation.source_tokens), ("target", translation.tokens):
            received = result[f"{side}_tokens"][row].tolist()
            assert received == [*tokens, *[""] * (len(received) - len(tokens))]


def test_only_blank_texts_are_answered_without_a_search(call):
    result = call("align", text=["", " "])
    assert result["translation"].tolist() == ["", ""] and result["score"].tolist() == [0.0, 0.0]
    assert result["alignment"].shape == (2, 0, 0)
    np.testing.assert_array_equal(call("beam", text=[""])["score"], [[0.0, -np.inf, -np.inf]])


def test_inputs_of_different_lengths_are_refused_with_their_name(call):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`top_k` must have a value for each"):
        call("sample", text=["a", "b"], **{**sampling(2), "top_k": [1]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="a target for each source"):
        call("score", source=["a", "b"], target=["a"])


def test_names_of_signatures_are_checked():
    names = SavedModelOptions(signatures=["score", "greedy"]).signatures
    assert names == ("serving_default", "greedy", "score")
    assert SavedModelOptions(signatures=()).signatures == ("serving_default",)
    with pytest.raises(InputError, match="must be among serving_default, .* Received: 'bean'"):
        SavedModelOptions(signatures=["bean"])


@pytest.fixture(scope="module")
def continuing(tokenizer):
    """An engine of a language model with random weights."""
    sizes = dict(model_dim=16, num_heads=2, intermediate_dim=32, num_decoder_layers=1)
    model = LanguageModel(LanguageModelConfig(tokenizer.vocabulary_size, **sizes))
    chance = np.random.default_rng(1)
    model.set_weights([0.7 * chance.normal(size=weight.shape) for weight in model.weights])
    return ModelEngine(model, tokenizer, max_source_length=13, max_target_length=17, **ONE_GRAPH)


@pytest.mark.slow
def test_searches_of_a_language_model_say_what_follows_the_text(continuing, texts):
    chosen = [texts[7], " ", texts[3]]
    beam = Signatures(continuing, {"beam_size": 2, "length_penalty": 0.8}).concrete("beam")
    result = {name: tensor.numpy() for name, tensor in beam(text=tf.constant(chosen)).items()}
    expected = continuing.translate(chosen, beam_size=2, n_best=2, length_penalty=0.8)
    names = ("score", "log_probability", "continuation_log_probability", "continuation_length")
    for row in (0, 2):
        for index, ours in enumerate([expected[row], *expected[row].alternatives]):
            assert result["translation"][row, index].decode() == ours.text
            for name in names:
                assert result[name][row, index] == pytest.approx(getattr(ours, name), rel=1e-4)
            assert 0 < ours.continuation_length < len(ours.ids)
    assert result["continuation_length"][1].tolist() == [0, 0]
    assert result["continuation_log_probability"][1, 0] == 0


def test_a_language_models_target_is_scored_after_its_source_and_cut_with_it(continuing, texts):
    sources, targets = [texts[7], "", texts[3], TOO_LONG], [texts[2], texts[6], "", TOO_LONG]
    score = Signatures(continuing, {"length_penalty": 0.8}).concrete("score")
    result = score(source=tf.constant(sources), target=tf.constant(targets))
    tokenize = continuing.source_tokenizer.tokenize
    ids = [tokenize(side, add_eos=True) for side in (sources, targets)]
    # Twelve tokens of the source, four of the target and the end: the most of a text.
    ids[0][3], ids[1][3] = [*ids[0][3][:12], EOS_ID], [*ids[1][3][:4], EOS_ID]
    expected = continuing.score(*ids, length_penalty=0.8)
    for name in ("score", "log_probability"):
        values = [getattr(translation, name) for translation in expected]
        np.testing.assert_allclose(result[name], values, rtol=1e-4)
