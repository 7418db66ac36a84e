"""SentencePiece's ids in JavaScript, as node runs it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from small_corpus import PAIRS

import keras_transformer
from keras_transformer import Tokenizer
from keras_transformer.data.dates import date_corpus
from keras_transformer.export.tokenizer_json import tokenizer_json
from keras_transformer.files import read_lines

STATIC = Path(keras_transformer.__file__).parent / "export" / "web" / "static"
MULTI30K = Path(__file__).parents[3].parent / "shared" / "data" / "multi30k"
HOSTILE = [
    *["", "  ", "  a   b ", "</s>", "<s> a </s> <unk> <pad>", "Grüße, señor!", "你好，世界 😀"],
    *["e\u0301\u200b\u00a0ﬁ", "a\x00b\tc\nd", "\u2581a", "a\u2581b", "﷽ ①", "カ゛ ﾊﾟ", "क्‍ष"],
    *["שלום عليكم", "👨‍👩‍👧‍👦", "A\u030a", "x²…", "a~b～c", "ＡＢＣ", "İ ß ẞ", "12 345"],
    *["Two dogsled", "gnu gnus Twos dog.", "\u2581 \u2581\u2581a"],
]
SCRIPT = """
import fs from "fs";
import { SentencePiece } from "./tokenizer.js";
const { content, texts, ids } = JSON.parse(fs.readFileSync("cases.json", "utf8"));
const tokenizer = new SentencePiece(content);
const encoded = texts.map((text) => tokenizer.encode(text));
console.log(JSON.stringify([encoded, ids.map((each) => tokenizer.decode(each))]));
"""


@pytest.fixture
def same(npm, tmp_path):
    """`same(tokenizer, texts)` checks ids, and the texts of these ids."""
    if shutil.which("node") is None:
        pytest.skip("needs node: apt-get install nodejs")
    library = npm / "node_modules" if (npm / "node_modules").is_dir() else npm
    library = library / "@huggingface" / "tokenizers" / "dist" / "tokenizers.min.mjs"
    shutil.copy(library, tmp_path / "tokenizers.js")
    shutil.copy(STATIC / "tokenizer.js", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "main.js").write_text(SCRIPT)

    def same(tokenizer, texts):
        ids = tokenizer.tokenize(texts)
        cases = {"content": tokenizer_json(tokenizer), "texts": texts, "ids": ids}
        (tmp_path / "cases.json").write_text(json.dumps(cases))
        done = subprocess.run(["node", "main.js"], cwd=tmp_path, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr
        encoded, decoded = json.loads(done.stdout)
        assert encoded == ids
        assert decoded == tokenizer.detokenize(ids)

    return same


@pytest.mark.parametrize(
    "options",
    [{"normalization": name} for name in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "identity")]
    + [{"byte_fallback": True}, {"whole_words": True}],
    ids=lambda options: "-".join(map(str, *options.items())),
)
def test_any_text_has_the_ids_of_sentencepiece(same, options):
    texts = [text for pair in PAIRS for text in pair]
    same(
        Tokenizer.train_from_texts(texts, 400 if "byte_fallback" in options else 130, **options),
        HOSTILE + texts,
    )


def test_dates_have_the_ids_of_sentencepiece(same):
    corpus = date_corpus(num_held_out=1000)
    tokenizer = Tokenizer.train_from_texts(corpus.train_source[::10], 400, split_digits=True)
    same(tokenizer, [*corpus.train_source[::9], *corpus.train_target[::9], *corpus.held_out_source])


@pytest.mark.corpus
@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs ../shared/data/multi30k")
def test_multi30k_has_the_ids_of_sentencepiece(same):
    texts = [text for path in sorted(MULTI30K.glob("*.??")) for text in read_lines(path)]
    same(Tokenizer.train_from_texts(texts[::10], 4000), texts[::7])
