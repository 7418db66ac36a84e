"""What `Engine` makes of the results of a runtime, over combinations of options."""

import dataclasses
import functools
import itertools
import warnings

import numpy as np
import pytest
from pairwise import pairwise

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID
from keras_transformer.decoding import DecodingOptions
from keras_transformer.engine import IdsEngine
from keras_transformer.engine.request import OptionRules
from keras_transformer.text.dialog import Turns
from keras_transformer.text.languages import Direction, Languages
from keras_transformer.text.symbols import Placeholders

_LANGUAGES = {"en": "<en>", "de": "<de>"}
_NO_DIRECTION = Direction()


class _Words:
    """Has a token per word; sides differ in their ids, so that one is not taken for the other."""

    vocabulary_size, tag_ids, placeholders, annotates_terms, turn_id = (
        10_000,
        frozenset(),
        Placeholders(),
        False,
        9,
    )
    tag_tokens: dict = {}

    def __init__(self, first_id):
        self.first_id = first_id

    def id_of(self, token):
        return self.first_id + {"<en>": 1, "<de>": 2}[token]

    def tokenize(self, texts, add_eos=False):
        return [[*map(self._id_of_word, text.split())] + [EOS_ID] * add_eos for text in texts]

    def _id_of_word(self, word):
        return 9 if word == "|" else self.first_id + (int(word) if word.isdigit() else 0)

    def detokenize(self, ids):
        return [" ".join(str(i - self.first_id) for i in row if i != EOS_ID) for row in ids]

    def pieces_of(self, ids):
        return [f"piece {i}" for i in ids]

    def split_tags(self, text):
        return "", text

    def split_tag(self, text):
        tag, _, rest = text.partition(" ")
        return (tag, rest) if tag in self.tag_tokens.values() else ("", text)


class _Echo(IdsEngine):
    """Translates each word to itself; hypothesis n ends in the word 900 + n."""

    capabilities = frozenset({"translate", "score", "sample", "align", "phrases"})
    option_rules = OptionRules(score=("alignment",))
    max_source_length = 8

    def __init__(self, **attributes):
        self.source_tokenizer, self.target_tokenizer = _Words(1000), _Words(4000)
        vars(self).update(attributes)

    def search(self, jobs, request):
        self.jobs = jobs
        return [self._hypotheses(number, job, request.options) for number, job in enumerate(jobs)]

    def _hypotheses(self, number, job, options):
        words = [i + 3000 for i in job.direction.of_source(list(job.source))[:-1]]
        return [
            Translation(
                "",
                -((n * 7) % 5 if options.sampling else n + 0.01 * n * number) - 1.0,
                ids=(*job.prefix, *words, 4900 + n, EOS_ID),
            )
            for n in range(options.n_best)
        ]

    def score_pairs(self, pairs, request):
        self.pairs = pairs
        matrices = self.align(pairs, request) if request.alignment else [None] * len(pairs)
        return [
            Translation(
                "", 0.0, token_log_probabilities=tuple(-float(i) for i in target), alignment=m
            )
            for (_, target), m in zip(pairs, matrices, strict=True)
        ]

    def align(self, pairs, request):
        return [np.add.outer(np.array(target) * 1e5, np.array(source)) for source, target in pairs]


def _around(sides, of_side, codes):
    """Tokens of languages: before a source, after it, and before a target."""
    ids = {"source": dict(_LANGUAGES)[codes[0]], "target": _LANGUAGES[codes[1]]}
    return [
        [tokenizer.id_of(ids[side])] if side else []
        for side, tokenizer in zip(sides, of_side, strict=True)
    ]


@pairwise(
    sides=[
        (None, None, None),
        ("target", None, None),
        ("source", "target", "target"),
        (None, "source", "target"),
    ],
    prefixes=[None, ["", "77 78", ""]],
    alignment=[False, True],
    n_best=[1, 3],
    sampling=[False, True],
    direction=[("en", "de"), (["en", "de", "en"], ["de", "en", "de"])],
)
def test_parts_prefixes_languages_and_hypotheses_meet(
    sides, prefixes, alignment, n_best, sampling, direction
):
    engine = _Echo(languages=Languages(_LANGUAGES, *sides))
    texts = ["1 2 3", " ".join(map(str, range(20, 35))), ""]
    options = {"sampling": True} if sampling else {"beam_size": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        translations = engine.translate(
            texts,
            n_best=n_best,
            target_prefixes=prefixes,
            alignment=alignment,
            long_input="split",
            source_language=direction[0],
            target_language=direction[1],
            **options,
        )
    codes = (
        list(zip(*direction, strict=True)) if isinstance(direction[0], list) else [direction] * 3
    )
    limit = engine.max_source_length - sum(side is not None for side in sides[:2])
    jobs = iter(engine.jobs)
    for text, translation, pair, prefix in zip(
        texts, translations, codes, prefixes or ["", "", ""], strict=True
    ):
        before, after, forced = _around(
            sides, (engine.source_tokenizer, engine.source_tokenizer, engine.target_tokenizer), pair
        )
        parts, words = [], text.split()
        while words:
            source = list(next(jobs).source)
            own = source[len(before) : len(source) - len(after)]
            assert source == [*before, *own, *after] and own[-1] == EOS_ID and len(own) <= limit
            assert own[:-1] == [1000 + int(word) for word in words[: len(own) - 1]]
            parts.append(words[: len(own) - 1])
            words = words[len(own) - 1 :]
        assert len(parts) == (
            1 if text.startswith("1") else 0 if not text else -(-15 // (limit - 1))
        )
        texts_of_parts = [
            [
                " ".join([*(prefix.split() if not i else []), *part, str(900 + n)])
                for n in range(n_best)
            ]
            for i, part in enumerate(parts)
        ]
        expected = [" ".join(row) for row in zip(*texts_of_parts, strict=True)]
        received = [h.text for h in (translation, *translation.alternatives)]
        assert received == (expected or [""])
        own_ids = [*(1000 + int(word) for word in text.split())]
        for hypothesis in (translation, *translation.alternatives):
            pieces = [
                f"piece {i}" for part in parts for i in (*(1000 + int(w) for w in part), EOS_ID)
            ]
            assert list(hypothesis.source_tokens) == pieces
            assert list(hypothesis.tokens) == [f"piece {i}" for i in hypothesis.ids]
            if len(parts) == 1:
                matrix = (
                    np.add.outer(np.array(hypothesis.ids) * 1e5, [*own_ids, EOS_ID])
                    if alignment
                    else None
                )
                np.testing.assert_array_equal(hypothesis.alignment, matrix)


@pairwise(
    sides=[
        (None, None, None),
        ("target", None, "target"),
        ("source", "target", None),
        (None, "source", "target"),
    ],
    alignment=[False, True],
    turns=[None, Turns("|", 2), Turns("|", None)],
    as_ids=[False, True],
)
def test_scores_are_of_the_targets_own_tokens(sides, alignment, turns, as_ids):
    engine = _Echo(languages=Languages(_LANGUAGES, *sides), turns=turns, max_source_length=99)
    sources, targets = ["1 | 2 3 | 4 | 5", "6", ""], ["7 8", "", "9"]
    read = [s.split() for s in (["4 | 5", "6", ""] if turns and turns.max_turns else sources)]
    given = engine.target_tokenizer.tokenize(targets, True) if as_ids else targets
    scored = engine.score(
        sources, given, alignment=alignment, source_language="en", target_language="de"
    )
    before, after, forced = _around(
        sides,
        (engine.source_tokenizer, engine.source_tokenizer, engine.target_tokenizer),
        ("en", "de"),
    )
    for pair, translation, source, target in zip(engine.pairs, scored, read, targets, strict=True):
        own = [*(9 if w == "|" else 1000 + int(w) for w in source), EOS_ID]
        ids = [*(4000 + int(w) for w in target.split()), EOS_ID]
        assert list(map(list, pair)) == [[*before, *own, *after], [*forced, *ids]]
        assert translation.text == target and list(translation.ids) == ids
        assert list(translation.token_log_probabilities) == [-i for i in ids]
        assert translation.log_probability == -sum(ids)
        assert [list(translation.source_tokens), list(translation.tokens)] == [
            [f"piece {i}" for i in side] for side in (own, ids)
        ]
        matrix = np.add.outer(np.array(ids) * 1e5, own) if alignment else None
        np.testing.assert_array_equal(translation.alignment, matrix)


def test_ids_without_an_end_are_no_translation():
    """The empty list would have the log-probability 0, the highest of all."""
    with pytest.raises(InputError, match=r"Text 2: Ids of `targets` .* \[2\]. Received: \[\]."):
        _Echo().score(["1", "3"], [[4002, EOS_ID], []])


def test_a_model_that_computes_nan_is_an_error_that_names_the_text():
    """Text 2 has two parts, so that the third part is of text 3."""
    engine, texts = _Echo(), ["1", " ".join(map(str, range(20, 32))), "5"]

    def hypotheses(number, job, options):
        scores = [float("nan") if 1005 in job.source and n else -1.0 for n in range(2)]
        return [Translation("", score, ids=(EOS_ID,)) for score in scores]

    engine._hypotheses = hypotheses
    with (
        pytest.warns(UserWarning, match="1 of 3 texts .* split"),
        pytest.raises(InputError, match="Text 3: The model computes NaN"),
    ):
        engine.translate(texts, n_best=2, long_input="split")
    engine.score_pairs = lambda pairs, request: [
        Translation("", 0.0, token_log_probabilities=(float("nan"),) * (1005 in source))
        for source, _ in pairs
    ]
    with pytest.raises(InputError, match="Text 2: The model computes NaN"):
        engine.score(["1", "5"], ["2", "3"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": 9, "max_length": 8}, "min_length=9, max_length=8"),
        ({"min_length": 12}, "min_length=12, max_length=11"),
    ],
)
def test_a_minimum_length_above_the_maximum_is_an_error(options, message):
    with pytest.raises(InputError, match=f"`min_length` must be at most.*Received: {message}"):
        _Echo(max_target_length=11).translate(["1"], **options)


@pytest.mark.parametrize("order", [*itertools.permutations(["<de> 1 2 3 4 5 6", "1 2 3 4 5 6 7"])])
def test_the_language_of_another_text_does_not_change_a_texts_limit(order):
    """Of 8 tokens, one ends a text; the token of its language is the first of the other one."""
    engine = _Echo(languages=Languages(_LANGUAGES, "target", is_optional=True))
    engine.source_tokenizer.tag_tokens = _LANGUAGES
    named = ["de" if text.startswith("1") else None for text in order]
    short = [text.removesuffix(" 7") for text in order]
    assert len(engine.translate(short, target_language=named)) == 2
    index = order.index("1 2 3 4 5 6 7")
    with pytest.raises(InputError, match="A text must have at most 7 tokens") as error:
        engine.translate(order, target_language=named)
    assert error.value.index == index
    assert len(engine.score(short, ["1", "2"], target_language=named)) == 2
    with pytest.raises(InputError, match="Each of `sources` must have at most 7 tokens") as error:
        engine.score(order, ["1", "2"], target_language=named)
    assert error.value.index == index


_OPTIONS = [field.name for field in dataclasses.fields(DecodingOptions)]
_OPTIONS += ["alignment", "long_input", "batch_size", "target_prefixes", "phrases", "glossary"]
_OPTIONS += ["glossary_by", "markup", "tag", "source_language", "target_language"]
_VALUES = [5, -1, 2**40, 0.5, float("nan"), True, "7", b"7", object(), {}, {1: 2}, {"5": "6"}]
_VALUES += [(), [5, 6], ["gnmt"], [["8"]], [None], {7}, np.float32(0), np.array(True)]
_VALUES += [np.array([5, 6]), np.array([[1.5]]), np.array("7"), "marian", "split", "html"]
_FLAGS = [True, np.array(True)]
_TAKEN = {
    **dict.fromkeys("beam_size min_length max_length no_repeat_ngram_size".split(), [5]),
    **dict.fromkeys(["n_best", "top_k", "batch_size"], [5]),
    **dict.fromkeys(["length_penalty", "word_penalty"], [5, 0.5, np.float32(0)]),
    **dict.fromkeys(["max_length_ratio", "min_length_ratio"], [5, 2**40, 0.5, np.float32(0)]),
    **dict.fromkeys("early_stopping shortlist allow_unknown sampling".split(), _FLAGS),
    **dict.fromkeys(["source_language", "target_language"], [[None]]),
    **{"length_normalization": ["marian"], "long_input": ["split"], "markup": ["html"]},
    **{"alignment": [True], "temperature": [5, 2**40, 0.5], "top_p": [0.5], "seed": [5, -1]},
    **{"banned_ids": [(), [5, 6], {7}, np.array([5, 6])], "logit_bias": [{}, {1: 2}, ()]},
    **{"target_prefixes": [["gnmt"]], "phrases": [[["8"]]], "glossary": [{"5": "6"}]},
}
# Scores take an option of a search only with its default.
_SCORED = {
    **{name: _TAKEN[name] for name in ("alignment", "batch_size", "early_stopping")},
    **{name: _TAKEN[name] for name in ("source_language", "target_language")},
    **dict.fromkeys(["word_penalty", "min_length_ratio"], [np.float32(0)]),
    **dict.fromkeys(["banned_ids", "logit_bias"], [()]),
}


@pytest.mark.parametrize("markup", [None, "placeholders"])
@pytest.mark.parametrize("name", _OPTIONS)
def test_an_option_takes_its_values_and_refuses_others_in_one_line(name, markup):
    engine = _Echo(languages=Languages(_LANGUAGES, "target"))
    values = {"source_language": "en", "target_language": "de"}
    score = functools.partial(Translator(engine).score, ["1 2"], ["3"], **values)
    values |= {"markup": markup, "sampling": True, "length_normalization": "marian"}
    translate = functools.partial(Translator(engine).translate, ["1 2"], **values)
    for call, expected in ((translate, _TAKEN), (score, _SCORED)):
        taken = []
        for value in _VALUES:
            try:
                call(**{name: value})
                taken.append(repr(value))
            except InputError as error:
                assert "\n" not in str(error) and len(str(error)) < 700
        assert taken == [*map(repr, expected.get(name, []))]


@pytest.mark.parametrize("order", [*itertools.permutations(["<de> 1", "2", "<en> 3 4"])])
def test_each_text_names_its_language_or_misses_it(order):
    engine = _Echo(languages=Languages(_LANGUAGES, "target"))
    engine.source_tokenizer.tag_tokens = _LANGUAGES
    directions = engine.directions.of(
        order, None, ["de" if text == "2" else None for text in order]
    )
    expected = {"2": (1002,)}
    assert [d.source_prefix for d in directions] == [expected.get(text, ()) for text in order]
    with pytest.raises(InputError) as error:
        engine.directions.of(order)
    assert error.value.index == order.index("2")


class _Bytes(_Words):
    """A token per byte of a text."""

    def tokenize(self, texts, add_eos=False):
        return [[1000 + b for b in text.encode()] + [EOS_ID] * add_eos for text in texts]

    def detokenize(self, ids):
        return [
            bytes(i - 1000 for i in row if i != EOS_ID).decode("utf-8", "replace") for row in ids
        ]


class _Spelling(_Echo):
    """Translates a part to its bytes without the last `dropped` bytes, byte by byte."""

    capabilities = frozenset({"stream"})
    dropped = 0

    def stream_ids(self, job, request):
        ids = list(job.source[:-1])[: len(job.source) - 1 - self.dropped]
        for size in range(1, len(ids) + 1):
            yield ids[:size]
        yield [*ids, EOS_ID]


@pytest.mark.parametrize("text", ["abc", "aß€𝄞", "é", "日本語", "a 𝄞 日 bé"])
@pytest.mark.parametrize("dropped", [0, 1, 2])
@pytest.mark.parametrize("limit", [99, 8])
def test_a_stream_yields_each_longer_text_of_whole_characters_and_then_all(text, dropped, limit):
    tokenizers = {"source_tokenizer": _Bytes(0), "target_tokenizer": _Bytes(0)}
    engine = _Spelling(**tokenizers, dropped=dropped, max_source_length=limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yielded = list(engine.stream(text, long_input="split"))
        jobs, _ = engine._jobs(
            [text], engine.request(beam_size=1, long_input="split"), [_NO_DIRECTION]
        )
    expected, earlier, last = [], [], ""
    for job in jobs:
        written = bytes(i - 1000 for i in job.source[:-1])[: len(job.source) - 1 - dropped]
        texts = [
            written[:size].decode("utf-8", "replace").rstrip("\ufffd")
            for size in range(1, len(written) + 1)
        ]
        for part in [*texts, written.decode("utf-8", "replace")]:
            parts = [*earlier, Translation(part, 0.0)]
            if (joined := Translation.joined(parts).text) != last:
                expected.append(joined)
                last = joined
        earlier = parts
    assert yielded == expected
