"""`tokenizer.json` for Hugging Face's `tokenizers`, an independent implementation."""

import io
import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as schema
from small_corpus import PAIRS

import keras_transformer
from keras_transformer import Tokenizer
from keras_transformer.base.reading import read_lines
from keras_transformer.export.litert import tokenizer_json as module

STATIC = pathlib.Path(keras_transformer.__file__).parent / "extras" / "web" / "static"
MULTI30K = pathlib.Path(__file__).parents[4] / "shared" / "data" / "multi30k"
HOSTILE = [
    *["", "  ", "  a   b ", "</s>", "<s> a </s> <unk> <pad>", "Grüße, señor!", "你好，世界 😀"],
    *["e\u0301\u200b\u00a0ﬁ", "a\x00b\tc\nd", "\u2581a", "a\u2581b", "﷽ ①", "क्‍ष"],
    *["שלום عليكم", "👨‍👩‍👧‍👦", "x²…", "a~b～c", "ＡＢＣ", "İ ß ẞ", "12 345"],
    *["Two dogsled", "gnu gnus Twos dog.", "\u2581 \u2581\u2581a", "a \u2581", "\u2581"],
    *["aaaaaaa bbbb", "......", "tatatatata", "ababab aabbaabb"],
    *["<2de> A dog.", "\t <2de>A dog.", "<2de>", " <2de> ", "<2de>\u3000dog"],
    *["a<ph_1>b (<ph_9>) <ph_10>", "<2de><ph_2>", "<PH_1>"],
    *["<2de> A <term_begin> dog<term_as> b<term_end> <2de>"],
]
# Python's library normalizes whole graphemes.
OF_GRAPHEMES = ["カ゛ ﾊﾟ", "A\u030a"]
TEXTS = [text for pair in PAIRS for text in pair]
SCRIPT = """
import fs from "fs";
import { SentencePiece } from "./tokenizer.js";
const { content, texts, ids } = JSON.parse(fs.readFileSync("cases.json", "utf8"));
const tokenizer = new SentencePiece(content);
const encoded = texts.map((text) => tokenizer.encode(text));
console.log(JSON.stringify([encoded, ids.map((each) => tokenizer.decode(each))]));
"""


@pytest.fixture
def in_javascript(request, tmp_path):
    """`in_javascript(tokenizer, texts, ids)`: ids of texts and texts of ids, from node."""
    if shutil.which("node") is None:
        pytest.skip("needs node: apt-get install nodejs")
    npm = request.getfixturevalue("npm")
    library = npm / "node_modules" if (npm / "node_modules").is_dir() else npm
    library = library / "@huggingface" / "tokenizers" / "dist" / "tokenizers.min.mjs"
    shutil.copy(library, tmp_path / "tokenizers.js")
    shutil.copy(STATIC / "tokenizer.js", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "main.js").write_text(SCRIPT)

    def in_javascript(tokenizer, texts, ids):
        cases = {"content": module.tokenizer_json(tokenizer), "texts": texts, "ids": ids}
        (tmp_path / "cases.json").write_text(json.dumps(cases))
        done = subprocess.run(["node", "main.js"], cwd=tmp_path, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return in_javascript


def in_python(tokenizer, texts, ids):
    tokenizers = pytest.importorskip("tokenizers", reason="comes with the extra [test]")
    theirs = tokenizers.Tokenizer.from_str(json.dumps(module.tokenizer_json(tokenizer)))
    # Of several spaces at the beginning SentencePiece takes all, they take one.
    decoded = [text.lstrip() for text in theirs.decode_batch(ids)]
    return [encoding.ids for encoding in theirs.encode_batch(texts)], decoded


def trained(**options):
    if "model_type" not in options:
        return Tokenizer.train_from_texts(TEXTS, **{"vocabulary_size": 150, **options})
    model, ids = io.BytesIO(), {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    options = {"vocab_size": 150, "normalization_rule_name": "identity", "minloglevel": 2} | options
    texts = iter(TEXTS * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, **ids, **options
    )
    return Tokenizer(model.getvalue())


@pytest.mark.parametrize("language", ["python", "javascript"])
@pytest.mark.parametrize(
    "options",
    [{"normalization": name} for name in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "identity")]
    + [
        {"byte_fallback": True, "vocabulary_size": 400},
        {"whole_words": True, "vocabulary_size": 40, "tags": ("2de",), "terms": True},
    ]
    + [{"split_digits": True, "tags": ("2de",), "placeholders": 9}]
    + [{"model_type": "bpe"}, {"model_type": "bpe", "byte_fallback": True, "vocab_size": 400}],
    ids=lambda options: "-".join(options),
)
def test_ids_and_texts_are_those_of_sentencepiece(request, language, options):
    tokenizer = trained(**options)
    texts = HOSTILE + TEXTS + (OF_GRAPHEMES if language == "javascript" else [])
    ids = tokenizer.tokenize(texts)
    expected = tokenizer.detokenize(ids)
    if language == "python":
        encoded, decoded = in_python(tokenizer, texts, ids)
        expected = [text.lstrip() for text in expected]
    else:
        encoded, decoded = request.getfixturevalue("in_javascript")(tokenizer, texts, ids)
    assert encoded == ids
    assert decoded == expected


@pytest.mark.corpus
@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs ../shared/data/multi30k")
def test_multi30k_has_the_ids_of_sentencepiece(in_javascript):
    texts = [text for path in sorted(MULTI30K.glob("*.??")) for text in read_lines(path)]
    tokenizer = Tokenizer.train_from_texts(texts[::10], 4000)
    ids = tokenizer.tokenize(texts[::7])
    assert in_javascript(tokenizer, texts[::7], ids) == [ids, tokenizer.detokenize(ids)]


@pytest.mark.tensorflow
def test_an_imported_vocabulary_keeps_its_segmentation():
    importing = pytest.importorskip("keras_transformer.extras.importing", reason="needs Keras")
    folder = pathlib.Path(__file__).parents[2] / "data" / "marian" / "opus"
    _, source, _, _ = importing.import_model(folder)
    texts = ["the old child sees a small house", "la kato movas", "kaj 1 domon", *HOSTILE]
    ids, _ = in_python(source, texts, [])
    size = source.vocabulary_size
    assert any(id >= size for row in ids for id in row)
    known = [[id if id < size else 3 for id in row] for row in ids]
    assert known == source.tokenize(texts)


def same_ids(model_bytes, smaller, texts):
    """Whether tensorflow-text's operation gives the same ids of the texts with both models."""
    import tensorflow_text

    both = (tensorflow_text.FastSentencepieceTokenizer(model) for model in (model_bytes, smaller))
    one, other = (tokenizer.tokenize(texts) for tokenizer in both)
    parts = (one.values, other.values), (one.row_splits, other.row_splits)
    return all(np.array_equal(*pair) for pair in parts)


@pytest.mark.tensorflow
def test_all_texts_keep_their_ids_with_a_hundredth_of_the_rules(tokenizer, texts):
    rules = sentencepiece.SentencePieceNormalizer(model_proto=tokenizer.model_bytes).Decompile()
    smaller = module.without_needless_rules(tokenizer.model_bytes)
    assert len(rules) > 200_000
    assert len(tokenizer.model_bytes) - len(smaller) > 200_000
    sources = [source for source, _ in rules]
    assert same_ids(tokenizer.model_bytes, smaller, [f"laufe{source}n" for source in sources])
    characters = [chr(code) for code in range(1, 0x30000) if not 0xD800 <= code < 0xE000]
    assert same_ids(tokenizer.model_bytes, smaller, characters)
    # Rules and words in any order, of which some rules for several characters overlap.
    chance = np.random.default_rng(11)
    parts = [*sources, *characters[:0x3100], *(" ".join(texts).split() * 50)]
    mixed = chance.choice(np.array(parts, dtype=object), (20_000, 7)).sum(axis=1)
    assert same_ids(tokenizer.model_bytes, smaller, mixed.tolist())
    # Such a comparison does find a rule that is missing.
    model = schema.ModelProto.FromString(tokenizer.model_bytes)
    fewer = sentencepiece.SentencePieceNormalizer(norm_map=[("Ａ", "A")])
    model.normalizer_spec.precompiled_charsmap = schema.NormalizerSpec.FromString(
        fewer.serialized_normalizer_spec()
    ).precompiled_charsmap
    assert not same_ids(tokenizer.model_bytes, model.SerializeToString(), mixed.tolist())


def test_a_tokenizer_without_rules_stays_as_it_is(texts):
    model_bytes = Tokenizer.train_from_texts(
        texts, vocabulary_size=53, normalization="identity"
    ).model_bytes
    assert module.without_needless_rules(model_bytes) == model_bytes


def test_a_rule_is_needed_if_a_known_character_or_nothing_is_on_a_side():
    needed = [("Ａ", "a"), ("b", "ｂ"), ("ab\u0308", "x")]
    needed += [("\u00ad", "")]  # Gone, instead of a piece for the unknown.
    assert module.needed_rules([*needed, ("ｶ", "カ"), ("ｶﾞ", "ガ")], {"a", "b"}) == needed


def test_a_rule_that_hides_a_needed_one_is_needed():
    # Without "xy", the "y" would become "a"; without "zxy" the same, from its second character on.
    rules = [("y", "a"), ("xy", "ξ"), ("zxw", "ζ"), ("qv", "ω"), ("v", "ν")]
    assert module.needed_rules(rules, {"a"}) == [("y", "a"), ("xy", "ξ"), ("zxw", "ζ")]
