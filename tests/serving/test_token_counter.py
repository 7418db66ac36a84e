"""Tokens counted with the tokenizers of a graph, beside SentencePiece's own counts."""

import pytest
import sentencepiece
import small_corpus

from keras_transformer.serving.token_counter import TokenCounter
from keras_transformer.text import Tokenizer

pytestmark = pytest.mark.tensorflow

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from tensorflow.core.protobuf import meta_graph_pb2  # noqa: E402
from tensorflow.python.saved_model import loader_impl  # noqa: E402

from keras_transformer.text.graph import GraphTokenizer  # noqa: E402

TEXTS = ["A dog plays.", "", "Two women", "Käse"]
ENCODED = [text.encode("utf-8") for text in TEXTS]


@pytest.fixture(scope="module")
def tokenizers():
    """Of English and German, of different sizes: no text has as many tokens in both."""
    english, german = zip(*small_corpus.PAIRS, strict=True)
    return (
        Tokenizer.train_from_texts(english, vocabulary_size=61),
        Tokenizer.train_from_texts(german, vocabulary_size=71),
    )


@pytest.fixture(scope="module")
def function(tokenizers):
    """Text to text, with both tokenizers."""
    source, target = map(GraphTokenizer, tokenizers)

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="text")])
    def default(text):
        return {"translation": target.detokenize(source.tokenize(text))}

    return default.get_concrete_function()


@pytest.fixture(scope="module")
def saved(function, tmp_path_factory):
    """The graph of a SavedModel, which has them in a function."""
    folder = str(tmp_path_factory.mktemp("saved"))
    tf.saved_model.save(tf.Module(), folder, signatures=function)
    return loader_impl.parse_saved_model(folder).meta_graphs[0]


def lengths(tokenizer, texts):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    return [len(processor.encode(text)) for text in texts]


def test_each_side_is_counted_with_its_own_tokenizer(saved, tokenizers):
    counter = TokenCounter(saved)
    source, target = (sum(lengths(tokenizer, TEXTS)) for tokenizer in tokenizers)
    assert source != target
    assert (counter.sources(ENCODED), counter.targets(ENCODED)) == (source, target)
    assert (counter.sources([]), counter.targets([])) == (0, 0)


def test_the_operations_are_found_at_the_top_of_a_graph_too(function, tokenizers):
    graph = meta_graph_pb2.MetaGraphDef(graph_def=function.graph.as_graph_def())
    counter = TokenCounter(graph)
    wanted = tuple(sum(lengths(tokenizer, TEXTS)) for tokenizer in tokenizers)
    assert (counter.sources(ENCODED), counter.targets(ENCODED)) == wanted


@pytest.mark.parametrize("count", [0, 1, 2, 15, 31])
def test_a_text_has_exactly_as_many_tokens_as_it_was_asked_for(saved, tokenizers, count):
    text = TokenCounter(saved).text_of(count).decode("utf-8")
    assert lengths(tokenizers[0], [text]) == [count]


def test_a_broken_character_is_counted_as_the_graph_does(saved, tokenizers):
    (ids,) = GraphTokenizer(tokenizers[0]).tokenize([b"a \xff dog"])
    assert TokenCounter(saved).sources([b"a \xff dog"]) == len(ids)


def test_without_a_tokenizer_nothing_is_counted():
    counter = TokenCounter(meta_graph_pb2.MetaGraphDef())
    assert (counter.sources(ENCODED), counter.targets(ENCODED)) == (0, 0)
    assert counter.text_of(3) == b"a a a" and counter.text_of(0) == b""
