"""Sentences with any two options at once: each is what it is alone, and no white space is lost."""

import dataclasses
import functools
import itertools
import json
import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID
from keras_transformer.cli.formats import as_json
from keras_transformer.engine import IdsEngine, ModelEngine
from keras_transformer.extras.bulk.lines import Line
from keras_transformer.models.config import TransformerConfig
from keras_transformer.models.transformer import Transformer
from keras_transformer.text import Tokenizer
from keras_transformer.text.languages import languages_of_tags
from keras_transformer.text.per_text import seed_of_part
from keras_transformer.text.sentences import TextRules, has_letters

LONG = "A man and a girl and the old clerk and two dogs came in and sat on a bench."
# A sentence, and the same in HTML.
SENTENCES = [
    ("One dog.", "One <b>dog</b>."),
    ("Is it so?", "<i>Is <b>it</b></i> so?"),
    ("Dr. Gold came!", "Dr. Gold came!"),
    ("TWO DOGS PLAY.", "TWO <b>DOGS PLAY.</b>"),
    ("A {x} b!", "<a href='x'>A {x}</a> b!"),
    ("12:30.", "12:30."),
    ("😀!", "😀!"),
    (LONG, f"<b>{LONG}</b>"),
]
SPACES = [" ", "  ", "\n", "\r\n", "\n\n", "\t", "\u00a0", " \n  ", "\u3000"]
OUTER = ["", " ", "\n", "\t\t", "\u00a0 ", "\r\n\r\n"]
TERMS = {"dog": "Hund", "clerk": "Beamter"}
PHRASES = ["dog", "Gold"]
LANGUAGES = ["de", "fr"]
SEEDS = [7, 5]


class QuickTokenizer(Tokenizer):
    """Tokenizes each text once: SentencePiece takes a millisecond for a list of any texts."""

    def tokenize(self, texts, add_bos=False, add_eos=False):
        if isinstance(texts, str):
            return [*self._ids(texts, add_bos, add_eos)]
        return [[*self._ids(text, add_bos, add_eos)] for text in texts]

    @functools.cache  # noqa: B019 - one object, for these tests
    def _ids(self, text, add_bos, add_eos):
        return super().tokenize(text, add_bos, add_eos)


class CopyingEngine(IdsEngine):
    """Copies the ids of a source; words after them name the hypothesis and all that it depends on.

    Nothing depends on the other sentences of a call.
    """

    capabilities = frozenset({"translate", "sample", "align", "phrases"})
    text_rules = TextRules(split_sentences=True)

    def __init__(self, tokenizer, max_source_length):
        self.source_tokenizer = self.target_tokenizer = tokenizer
        self.languages = languages_of_tags(tokenizer.tag_tokens)
        self.max_source_length = max_source_length
        self.jobs = []

    def search(self, jobs, request):
        self.jobs += jobs
        return [self._hypotheses(job, request.options) for job in jobs]

    def _hypotheses(self, job, options):
        words = [id for id in job.direction.of_source(job.source)[:-1] if id not in self._tags]
        depends = [*job.direction.source_prefix, *self._tags & {*job.source}]
        depends += [job.seed] if options.sampling else []
        hypotheses = []
        for rank in range(options.n_best):
            added = self.target_tokenizer.tokenize("".join(f" {n}" for n in [rank, *depends]))
            ids = (*job.prefix, *words, *itertools.chain(*job.phrases), *added, EOS_ID)
            by_token = tuple(-1.0 - (id + rank) % 4 for id in ids)
            total = sum(by_token) - 100 * rank
            hypotheses.append(
                Translation("", total, total, ids=ids, token_log_probabilities=by_token)
            )
        return hypotheses

    @property
    def _tags(self):
        tokens = self.source_tokenizer.tag_tokens.values()
        return {*map(self.source_tokenizer.id_of, tokens)}

    def align(self, pairs, request):
        return [
            np.equal.outer(target, source) + np.float32(1 / (1 + len(source)))
            for source, target in pairs
        ]


@pytest.fixture(scope="module")
def engine():
    texts = [sentence for sentence, _ in SENTENCES if sentence != LONG]
    tokenizer = QuickTokenizer.train_from_texts(
        [*texts, LONG, *TERMS.values()] * 9,
        vocabulary_size=340,
        byte_fallback=True,
        terms=True,
        placeholders=4,
        tags=["bt"],
        languages=[f">>{code}<<" for code in LANGUAGES],
    )
    # Room for a tag, a language and the annotation of a term.
    longest = max(map(len, tokenizer.tokenize(texts, add_eos=True))) + 12
    assert len(tokenizer.tokenize(LONG, add_eos=True)) > longest
    return CopyingEngine(tokenizer, longest)


def of_each(name, values):
    """An option with a value for each text, by the text's number."""
    return lambda texts: {name: [values[number % 2] for number, _ in texts]}


def for_all(**options):
    return lambda texts: options


def is_in(phrase, text):
    return phrase.lower() in text.lower()


def phrases(texts):
    """Phrases that the sources of texts have."""
    return {"phrases": [[one for one in PHRASES if is_in(one, text)] for _, text in texts]}


# Options of `Translator.translate` for pairs of a number and a text.
OPTIONS = {
    "html": for_all(markup="html"),
    "placeholders": for_all(markup="placeholders"),
    "glossary": for_all(glossary=TERMS, glossary_by="constraints"),
    "annotations": for_all(glossary=TERMS, glossary_by="annotations"),
    "phrases": phrases,
    "languages": of_each("target_language", LANGUAGES),
    "languages in texts": for_all(),  # Each text begins with the tag of its language.
    "tag": for_all(tag="bt"),
    "target prefix": of_each("target_prefixes", ["So", "dog"]),
    "n-best": for_all(n_best=3),
    "samples": lambda texts: {"sampling": True, **of_each("seed", SEEDS)(texts)},
    "alignment": for_all(alignment=True),
    "JSON": for_all(),
    "long texts split": for_all(long_input="split"),
    "long texts truncated": for_all(long_input="truncate"),
    "long texts refused": for_all(long_input="refuse"),
    "keep_case": for_all(keep_case=True),
    "copy_symbols": for_all(copy_symbols=True),
}
# What no search can do: sampling takes no phrases.
REFUSED = [("phrases", "samples"), ("glossary", "samples")]
# Two values of one option.
VALUES_OF_ONE = [{"html", "placeholders"}, {"glossary", "annotations"}]
VALUES_OF_ONE += [{"languages", "languages in texts"}]
VALUES_OF_ONE += [{name for name in OPTIONS if name.startswith("long")}]
PAIRS = [
    pair
    for pair in itertools.combinations(OPTIONS, 2)
    if pair not in REFUSED and not any({*pair} <= names for names in VALUES_OF_ONE)
]
TAG = re.compile("</?[a-z][^>]*>")


@st.composite
def drawn_texts(draw, names):
    """Returns two texts: sentences, and the white space around and between them."""
    is_html, has_long = "html" in names, any(name.startswith("long") for name in names)
    sentences = [row[is_html] for row in SENTENCES if has_long or row[0] != LONG]
    if is_html and "copy_symbols" not in names:  # A block without letters is part of the markup.
        sentences = list(filter(has_letters, sentences))
    texts = []
    for is_second in (False, True):
        if is_html and "copy_symbols" in names and is_second:  # a block without letters
            sentences = list(itertools.filterfalse(has_letters, sentences))
        chosen = draw(st.lists(st.sampled_from(sentences), min_size=1, max_size=4))
        inner = [draw(st.sampled_from(SPACES)) for _ in chosen[1:]]
        outer = [draw(st.sampled_from(OUTER)) for _ in range(2)]
        texts.append((chosen, [outer[0], *inner, outer[1]]))
    return texts


def woven(spaces, sentences):
    return "".join(itertools.chain(*itertools.zip_longest(spaces, sentences, fillvalue="")))


def translated(engine, names, texts, **others):
    """Returns the translations of numbered texts, or the error, and what the search has read."""
    engine.jobs, options = [], {}
    for name in names:
        options |= OPTIONS[name](texts)
    options |= {name: value for name, value in others.items() if name in options}
    if "languages in texts" in names:
        texts = [(number, f">>{LANGUAGES[number]}<< {text}") for number, text in texts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of long texts
        try:
            translations = Translator(engine).translate([text for _, text in texts], **options)
        except InputError as error:
            return error, []
    return translations, engine.jobs


def alone(engine, names, number, sentences):
    """Returns the translation or the error of each sentence, and what the search has read."""
    results, jobs, phrases_left, prefixes = [], [], [*PHRASES], {}
    for index, sentence in enumerate(sentences):
        phrases_here = [phrase for phrase in phrases_left if is_in(phrase, sentence)]
        phrases_left = [phrase for phrase in phrases_left if phrase not in phrases_here]
        result, read = translated(
            engine,
            names,
            [(number, sentence)],
            phrases=[phrases_here],
            seed=seed_of_part(SEEDS[number], index),
            **prefixes,
        )
        if read:  # The prefix belongs to the first sentence that the model reads.
            prefixes = {"target_prefixes": [""]}
        results.append(result if isinstance(result, InputError) else result[0])
        jobs += read
    return results, jobs


def hypotheses_of(translation):
    return [translation, *translation.alternatives]


def ranked(parts):
    """The hypotheses of a text of given parts, in the order in which they are returned."""
    rows = list(map(hypotheses_of, parts))
    longer = [row + row[-1:] * (max(map(len, rows)) - len(row)) for row in rows]
    return list(zip(*longer, strict=True))


def check_text(translation, parts, spaces, names):
    expected = ranked(parts)
    hypotheses = hypotheses_of(translation)
    assert translation.text == woven(spaces, [one.text for one in parts])
    assert [one.score for one in hypotheses] == [sum(p.score for p in row) for row in expected]
    texts = [woven(spaces, [one.text for one in row]) for row in expected]
    assert [one.text for one in hypotheses] == texts
    if len(parts) == 1:
        received = [translation]
    else:
        received = translation.parts
        assert translation.alignment is None
    for one, part in zip(received, parts, strict=True):
        assert (one.score, one.ids) == (part.score, part.ids)
        if part.tokens:  # A block of HTML without letters is none that a step copies.
            assert _without_numbers(one.tokens) == _without_numbers(part.tokens)
        assert (one.alignment is None) == (part.alignment is None)
        if part.alignment is not None:
            assert np.array_equal(one.alignment, part.alignment)
    if "JSON" in names:
        check_json(translation, parts)


def _without_numbers(tokens):
    """Tokens without the numbers of placeholders, which are those of the whole text."""
    return [re.sub(r"<ph_\d>", "<ph>", token) for token in tokens]


def check_json(translation, parts):
    values, *rows = (json.loads(as_json(Line(1, "a", 2), one)) for one in (translation, *parts))
    assert values["translation"] == translation.text
    for received, row in zip(values["parts"] if len(rows) > 1 else [values], rows, strict=True):
        assert received["score"] == row["score"]
        assert received["token_log_probabilities"] == row["token_log_probabilities"]
        assert _without_numbers(received["tokens"]) == _without_numbers(row["tokens"])
        assert received.get("alignment") == row.get("alignment")


@pytest.mark.parametrize("names", PAIRS, ids=" and ".join)
@settings(max_examples=8)
@given(data=st.data())
def test_each_sentence_is_translated_once_and_is_what_it_is_alone(engine, names, data):
    drawn = data.draw(drawn_texts(names))
    texts = [(number, woven(spaces, chosen)) for number, (chosen, spaces) in enumerate(drawn)]
    translations, jobs = translated(engine, names, texts)
    rows = [alone(engine, names, number, chosen) for number, (chosen, _) in enumerate(drawn)]
    refused = [
        number
        for number, (parts, _) in enumerate(rows)
        if any(isinstance(part, InputError) for part in parts)
    ]
    assert isinstance(translations, InputError) == bool(refused)
    if refused:
        assert translations.index == refused[0] and "\n" not in str(translations)
        return
    assert jobs == [job for _, read in rows for job in read]
    for translation, (parts, _), (chosen, spaces) in zip(translations, rows, drawn, strict=True):
        if "languages in texts" in names:  # The space after a tag is no part of the text.
            spaces = ["", *spaces[1:]]
        if "html" in names and not any(map(has_letters, chosen)):
            assert translation.text == woven(spaces, chosen)
            continue
        if "html" in names:  # In a block, white space is a space.
            first, *inner, last = spaces
            spaces = [first, *(re.sub(r"[ \t\n\r]+", " ", space) for space in inner), last]
        if "html" in names and "long texts truncated" in names:
            # Where a sentence begins that follows a truncated one is not known exactly.
            check_tags(translation, parts)
            translation, *parts = map(without_tags, (translation, *parts))
        check_text(translation, parts, spaces, names)


def check_tags(translation, parts):
    tags = [tag for part in parts for tag in TAG.findall(part.text)]
    assert sorted(TAG.findall(translation.text)) == sorted(tags)


def without_tags(translation):
    return dataclasses.replace(translation, text=TAG.sub("", translation.text))


@pytest.mark.tensorflow
@pytest.mark.parametrize("names", REFUSED, ids=" and ".join)
def test_a_pair_that_no_search_can_take_is_refused_in_one_line(engine, names):
    tokenizer = engine.source_tokenizer
    sizes = {"model_dim": 4, "num_heads": 1, "num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Transformer(TransformerConfig(tokenizer.vocabulary_size, **sizes))
    model = ModelEngine(model, tokenizer, max_target_length=8, with_xla=False)
    options, text = {}, "The clerk and Gold came. One dog."
    for name in names:
        options |= OPTIONS[name]([(0, text)])
    message = "`phrases` are only for a beam search. Received: sampling=True."
    with pytest.raises(InputError, match=re.escape(message)) as error:
        Translator(model).translate([text], split_sentences=True, **options)
    assert "\n" not in str(error.value)
