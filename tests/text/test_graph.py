import json
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.data import read_lines
from keras_transformer.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.text import Tokenizer

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from keras_transformer.text import graph  # noqa: E402

MULTI30K = Path(__file__).parents[2].parent / "shared" / "data" / "multi30k"
TEXTS = ["two dogs sits", "", "Käse 你好 😀", "a man"]

# Run apart from this package: TensorFlow and tensorflow-text alone, sessions first so that nothing
# another loader made can help them.
LOAD = """
import json, sys
import tensorflow as tf, tensorflow_text
folder, texts = sys.argv[1], json.loads(sys.argv[2])
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)
    signature = meta.signature_def["serving_default"]
    names = {key: info.name for key, info in signature.outputs.items()}
    session_result = session.run(names, {signature.inputs["texts"].name: texts})
loaded = tf.saved_model.load(folder).signatures["serving_default"](texts=tf.constant(texts))
for result in (session_result, {key: value.numpy() for key, value in loaded.items()}):
    texts = [text.decode() for text in result["texts"].tolist()]
    print(json.dumps([result["ids"].tolist(), texts]))
assert not [name for name in sys.modules if name.startswith("keras_transformer")]
"""


KINDS = ["tokenizer", "byte_tokenizer", "word_tokenizer", "symbol_tokenizer"]


@pytest.fixture(scope="module", params=KINDS)
def both(request):
    """A tokenizer and its graph: without and with byte fallback, of whole words, with symbols."""
    chosen = request.getfixturevalue(request.param)
    return chosen, graph.GraphTokenizer(chosen)


def decoded(texts):
    return [text.decode("utf-8") for text in texts.numpy()]


def test_nasty_texts_give_equal_ids_and_texts(both, nasty_texts):
    tokenizer, in_graph = both
    ids = tokenizer.tokenize(nasty_texts)
    found = in_graph.tokenize(nasty_texts)
    assert found.dtype == tf.int32 and found.to_list() == ids
    assert decoded(in_graph.detokenize(found)) == tokenizer.detokenize(ids)


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("add_eos", [False, True])
def test_special_ids_are_added_alike(both, add_bos, add_eos):
    tokenizer, in_graph = both
    found = in_graph.tokenize(TEXTS, add_bos=add_bos, add_eos=add_eos)
    assert found.to_list() == tokenizer.tokenize(TEXTS, add_bos=add_bos, add_eos=add_eos)


def test_text_ends_at_the_first_end_alike(both):
    tokenizer, in_graph = both
    dogs, man = tokenizer.tokenize(["two dogs", "a man"])
    rows = [
        [PAD_ID, BOS_ID, *dogs, PAD_ID, EOS_ID, *man, EOS_ID],
        [],
        [EOS_ID, *man],
        [*dogs, PAD_ID, *man],
        [PAD_ID],
    ]
    expected = ["two dogs", "", "", "two dogs a man", ""]
    assert tokenizer.detokenize(rows) == expected
    ragged = tf.ragged.constant(rows, dtype=tf.int32)
    assert decoded(in_graph.detokenize(ragged)) == expected
    # The same rows as a search gives them: dense, int64, padded.
    assert decoded(in_graph.detokenize(tf.cast(ragged.to_tensor(PAD_ID), tf.int64))) == expected


def test_an_empty_batch_stays_empty(both):
    _, in_graph = both
    ids = in_graph.tokenize(tf.zeros([0], tf.string), add_bos=True, add_eos=True)
    assert ids.shape[0] == 0
    assert in_graph.detokenize(ids).shape == (0,)
    assert in_graph.detokenize(tf.zeros([0, 5], tf.int32)).shape == (0,)


def test_a_wrong_byte_is_no_error(tokenizer, byte_tokenizer):
    wrong = tf.constant([b"a\xff man"])
    a, man = tokenizer.tokenize(["a", "man"])
    assert graph.GraphTokenizer(tokenizer).tokenize(wrong).to_list() == [[*a, UNK_ID, *man]]
    # Ids 4 to 259 are the bytes; U+FFFD is EF BF BD.
    a, man = byte_tokenizer.tokenize(["a", "man"])
    replacement = [4 + 0xEF, 4 + 0xBF, 4 + 0xBD]
    assert graph.GraphTokenizer(byte_tokenizer).tokenize(wrong).to_list() == [
        [*a, *replacement, *man]
    ]


def test_setting_a_seed_breaks_nothing(both):
    tokenizer, in_graph = both
    compiled = tf.function(lambda texts: in_graph.detokenize(in_graph.tokenize(texts)))
    for seed in range(3):
        assert decoded(compiled(tf.constant(TEXTS))) == tokenizer.detokenize(
            tokenizer.tokenize(TEXTS)
        )
        assert in_graph.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS)
        tf.random.set_seed(seed)


def test_functions_and_saved_models_take_and_give_text(both, tmp_path):
    tokenizer, in_graph = both

    class Echo(tf.Module):
        def __init__(self):
            super().__init__()
            self.tokenizer = in_graph

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, texts):
            ids = self.tokenizer.tokenize(texts, add_bos=True, add_eos=True)
            return {"ids": ids.to_tensor(), "texts": self.tokenizer.detokenize(ids)}

    echo = Echo()
    rows = tokenizer.tokenize(TEXTS, add_bos=True, add_eos=True)
    width = max(map(len, rows))
    expected = [
        [row + [PAD_ID] * (width - len(row)) for row in rows],
        tokenizer.detokenize(rows),
    ]
    live = echo(tf.constant(TEXTS))
    assert [live["ids"].numpy().tolist(), decoded(live["texts"])] == expected

    tf.saved_model.save(echo, str(tmp_path / "model"), signatures=echo.__call__)
    # Away from its folder of birth, with no file of the tokenizer beside it.
    (tmp_path / "model").rename(tmp_path / "moved")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "moved"), json.dumps(TEXTS)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert [json.loads(line) for line in result.stdout.splitlines()] == [expected, expected]


def test_an_error_about_tensorflow_text_names_versions(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError, match="minor version .*tensorflow .*, tensorflow-text "):
        graph.GraphTokenizer(tokenizer)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs ../shared/data/multi30k")
def test_all_of_multi30k_gets_equal_ids():
    files = MULTI30K / "train.en", MULTI30K / "train.de"
    tokenizer = Tokenizer.train(files, vocabulary_size=8000)
    in_graph = graph.GraphTokenizer(tokenizer)
    for file in files:
        lines = read_lines(file)
        ids = tokenizer.tokenize(lines)
        found = in_graph.tokenize(lines)
        assert len(lines) == 29000 and found.to_list() == ids
        assert decoded(in_graph.detokenize(found)) == tokenizer.detokenize(ids)


def test_two_tokenizers_in_two_functions_of_one_saved_model_stay_apart(
    tokenizer, byte_tokenizer, tmp_path
):
    both = (byte_tokenizer, tokenizer)
    spec = [tf.TensorSpec((None,), tf.string)]
    inner = [tf.function(graph.GraphTokenizer(each).tokenize, spec) for each in both]

    def tokenize(texts):
        return {str(i): function(texts).to_tensor() for i, function in enumerate(inner)}

    outer = tf.function(tokenize, [tf.TensorSpec((None,), tf.string, name="texts")])
    tf.saved_model.save(tf.Module(), str(tmp_path), {"serving_default": outer})
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    found = loaded(texts=tf.constant(["a man sits 你"]))
    for i, each in enumerate(both):
        assert found[str(i)].numpy().tolist() == [each.tokenize("a man sits 你")]
