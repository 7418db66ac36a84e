"""Languages of a model: codes, directions and tokens, also of many drawn models."""

import itertools
import json

import numpy as np
import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.text.languages import (
    Direction,
    Languages,
    codes_of,
    languages_of_directions,
    languages_of_tags,
    named_directions,
)

TOKENS = {"de": "__de__", "en": "__en__", "zh-Hant": "zho_Hant"}
M2M = Languages(TOKENS, "source", target_prefix="target")


def test_a_language_has_its_code_its_token_and_the_names_of_other_standards():
    for source in ("en", "EN", "eng", "eng_Latn", "__en__", ">>eng<<"):
        for target in ("zh-Hant", "zh_hant", "zho_Hant", "cmn_Hant"):
            tokens = M2M.tokens_of(source, target)
            assert tokens == (("__en__",), (), ("zho_Hant",), ("en", "zh-Hant"))


@pytest.mark.parametrize(
    ("languages", "named", "expected"),
    [
        (M2M, ("de", "en"), (("__de__",), (), ("__en__",))),
        (Languages(M2M.tokens, "target"), (None, "en"), (("__en__",), (), ())),
        (
            Languages(M2M.tokens, source_suffix="source", target_prefix="target"),
            ("de", "en"),
            ((), ("__de__",), ("__en__",)),
        ),
        # The only direction to German.
        (
            Languages(M2M.tokens, "source", directions=(("en", "de"), ("de", "en"))),
            (None, "de"),
            (("__en__",), (), ()),
        ),
        (Languages(directions=(("en", "de"),)), (None, None), ((), (), ())),
        (
            languages_of_tags({"2en": "<2en>", "epo": ">>epo<<"}),
            ("fr", "eo"),
            ((">>epo<<",), (), ()),
        ),
        (languages_of_tags({"epo": ">>epo<<", "deu": ">>deu<<"}), (None, None), ((), (), ())),
    ],
)
def test_each_family_of_models_has_its_tokens_in_its_places(languages, named, expected, tmp_path):
    assert languages.tokens_of(*named)[:3] == expected
    languages.save(tmp_path / "languages.json")
    assert Languages.load(tmp_path / "languages.json") == languages
    assert languages_of_tags({"2en": "<2en>"}) is None


def test_a_table_has_the_ids_of_each_spelling_in_the_places_of_the_model():
    source, target = ["", *TOKENS.values()].index, ["", "", *TOKENS.values()].index
    languages = Languages(TOKENS, source_suffix="source", target_prefix="target")
    names, ids = languages.table(source, target)
    assert ids[0] == () and set(names) == set(languages.spellings)
    for spelling, place in (("de", 1), ("deu", 1), ("en-us", 2), ("zh-tw", 3), ("zho-hant", 3)):
        row = names.index(spelling)
        assert (ids.source_suffix[0][row], ids.target_prefix[0][row]) == (place, place + 1)
    # A vocabulary of no place need not have the tokens.
    assert len(Languages(TOKENS, "target").table(source, [].index).ids.source_prefix) == 1


ONE = Languages(directions=(("en", "eo"),))
OPEN = languages_of_tags({"epo": ">>epo<<", "deu": ">>deu<<"})
# A model, what is named, the question, and what the line of the error names.
LACKING = [
    (M2M, "de-xx", "`target_language` must be one of en, zh-Hant, de. Received: 'xx'.$"),
    (M2M, "den-en", "`source_language` must be .*Did you mean `de` or `en`"),
    (M2M, "de-de", "must have the direction: de-en.* Received: de-de. Did you mean `de-en`"),
    (M2M, ("de", None), "`target_language` must be one of en, zh-Hant. Received: None. Name"),
    (M2M, (7, None), "`source_language` must be a code. Received: 7"),
    (ONE, "eo-en", "direction: en-eo. Received: eo-en."),
]
LACKING = [(Languages.tokens_of, *row) for row in LACKING] + [
    (named_directions, ONE, "fr-it", "direction of the model: en-eo. Received: fr-it.$"),
    (named_directions, ONE, "eo-en", "direction of the model: en-eo. Received: eo-en.$"),
    (named_directions, OPEN, "fr-it", "the model: any-eo, any-de. Received: fr-it.$"),
    (named_directions, M2M, ("en", "zh-Hans"), "Received: en-zh-Hans.$"),
]


@pytest.mark.parametrize(("ask", "languages", "named", "message"), LACKING)
def test_what_a_model_lacks_is_one_line_with_the_nearest(ask, languages, named, message):
    named = tuple(named.split("-")) if isinstance(named, str) else named
    with pytest.raises(InputError, match=message):
        ask(languages, named) if ask is named_directions else ask(languages, *named)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"source_prefix": "source", "directions": ((None, "de"),)},
            "Each source language must have a token. Received: any language without a token.",
        ),
        ({"target_prefix": "target"}, "must have a direction. Received: tokens of de."),
    ],
)
def test_tokens_that_fit_no_direction_are_an_error(fields, message):
    fields = {"tokens": {"de": "__de__"}, **fields}
    with pytest.raises(InputError, match=message):
        Languages(**fields)
    with pytest.raises(InputError, match=f"^languages.json: .*{message}"):
        Languages.from_dict(fields, "languages.json: ")


@pytest.mark.parametrize(
    ("languages", "named", "expected"),
    [
        (None, None, []),
        (None, ("fr", "it"), [("fr", "it")]),
        (ONE, None, [("en", "eo")]),
        (ONE, ("en-GB", "eo"), [("en-GB", "eo")]),  # The region is the user's.
        (ONE, ("en", "epo"), [("en", "epo")]),
        (OPEN, ("fr", "de"), [("fr", "eo"), ("fr", "de")]),
        (M2M, ("en", "de-AT"), list(M2M.directions)),
    ],
)
def test_named_languages_are_a_direction_of_the_model_apart_from_regions(
    languages, named, expected
):
    assert named_directions(languages, named) == expected


def test_a_damaged_file_is_one_line(tmp_path):
    file = tmp_path / "languages.json"
    needed = {"tokens": {"de": "__de__"}, "target_prefix": "target", "directions": [["de", "en"]]}
    for content, message in (
        ("{", "expected the languages of a model"),
        (json.dumps({"target_prefix": "x"}), "`target_prefix` must"),
        (json.dumps({"tokens": {"de": "__de__"}, "before": "target"}), "unknown key `before`"),
        (json.dumps(needed), "Each target language must have a token. Received: en"),
    ):
        file.write_text(content)
        with pytest.raises(InputError, match=message):
            Languages.load(file)


SIDES = ("source", "target", None)


@pytest.mark.parametrize("sizes", [*itertools.product((0, 1, 2), (0, 1), (0, 1))])
def test_a_direction_takes_out_what_it_put_in(sizes):
    before, after, forced = (
        tuple(f"<{name}{i}>" for i in range(size)) for name, size in zip("baf", sizes, strict=True)
    )
    direction = Direction(before, after, forced, ("en", "de"))
    source, target = ["s0", "s1", "s2", "</s>"], ["t0", "t1"]
    assert direction.num_added == len(before + after)
    assert direction.source(source) == [*before, *source, *after]
    assert direction.target(target) == [*forced, *target]
    assert direction.of_source(direction.source(source)) == source
    assert direction.of_target(direction.target(target)) == target
    pairs = np.array(
        [[f"{t} {s}" for s in direction.source(source)] for t in direction.target(target)]
    )
    assert direction.of_alignment(pairs).tolist() == [[f"{t} {s}" for s in source] for t in target]
    assert direction.of_alignment(None) is None
    ids = direction.to_ids("source {}".format, "target {}".format)
    of_source = [tuple(f"source {token}" for token in tokens) for tokens in (before, after)]
    assert ids == (*of_source, tuple(f"target {token}" for token in forced), ("en", "de"))


def all_languages():
    codes = ["en", "de", "pt"]
    pairs = [*itertools.permutations(codes, 2), ("en", "en"), (None, "de"), (None, "pt")]
    directions = [
        (),
        *itertools.combinations(pairs, 2),
        *itertools.combinations(pairs, 6),
        *itertools.combinations(pairs, 7),
    ]
    for number, chosen in enumerate(directions):
        sides = [SIDES[number % 3], SIDES[number // 3 % 3], SIDES[number // 2 % 3]]
        if any(source is None for source, _ in chosen) and "source" in sides:
            sides = ["target" if side == "source" else side for side in sides]
        yield Languages({code: f"<{code}>" for code in codes}, *sides, chosen, number % 2 == 0)


def test_languages_of_any_directions_are_read_as_they_were_written():
    for languages in all_languages():
        assert Languages.from_dict(json.loads(json.dumps(languages.to_dict()))) == languages


def sides_of(languages):
    return languages.source_prefix, languages.source_suffix, languages.target_prefix


def test_a_language_may_be_left_out_where_one_is_possible_or_no_token_needs_it():
    """All arguments of many languages, by the docstring."""
    answers = set()
    for languages in all_languages():
        needed = set(sides_of(languages)) - {None}
        for source, target in itertools.product((None, "en", "de", "pt"), repeat=2):
            fitting = [
                pair
                for pair in languages.directions
                if source in (None, pair[0]) or pair[0] is None and source
                if target in (None, pair[1])
            ]
            expected = []
            for side, code, possible in zip(
                ("source", "target"), (source, target), zip(*fitting, strict=True), strict=False
            ):
                left = dict.fromkeys(possible)
                if code is None and len(left) == 1:
                    (code,) = left
                elif code is None and side in needed:
                    code = "error"
                expected.append(code)
            if source is None and target is None and languages.is_optional:
                expected = [None, None]
            elif not fitting or "error" in expected:
                expected = None
            try:
                received = list(languages.direction(source, target))
            except InputError:
                received = None
            assert received == expected, (languages, source, target)
            answers.add(str(expected))
            if expected is not None:
                tokens = {"source": expected[0], "target": expected[1]}
                of_sides = [
                    (f"<{tokens[side]}>",) if side and tokens[side] else ()
                    for side in sides_of(languages)
                ]
                assert languages.tokens_of(source, target) == (*of_sides, tuple(expected))
    assert len(answers) > 9


def test_names_of_one_code_stay_as_they_are_without_signs():
    names = [">>deu<<", "__fr__", ">>prs_Arab<<", ">>pes_Arab<<", "▁>>zho_Hans<<"]
    for order in itertools.permutations(names):
        assert codes_of(order) == {
            "de": ">>deu<<",
            "fr": "__fr__",
            "prs_Arab": ">>prs_Arab<<",
            "pes_Arab": ">>pes_Arab<<",
            "zh": "▁>>zho_Hans<<",
        }


def test_tokens_of_new_models_are_those_that_its_texts_are_read_with():
    directions = [("en", "pt-BR"), ("en", "zh-Hant"), ("en-GB", "pt")]
    for chosen in (*itertools.combinations(directions, 2), directions):
        languages = languages_of_directions(chosen)
        assert languages.tokens == {target: f">>{target.lower()}<<" for _, target in chosen}
        assert languages.directions == tuple(chosen)
