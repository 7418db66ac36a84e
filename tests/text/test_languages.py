"""Languages of a model: codes, directions and tokens."""

import json

import pytest

from keras_transformer.errors import InputError
from keras_transformer.text.languages import Languages, languages_of_tags, named_directions

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


@pytest.mark.parametrize(
    ("languages", "named", "message"),
    [
        (M2M, ("de", "xx"), "`target_language` must be one of en, zh-Hant, de. Received: 'xx'.$"),
        (M2M, ("den", "en"), "`source_language` must be .*Did you mean `de` or `en`"),
        (
            M2M,
            ("de", "de"),
            "must have the direction: de-en.* Received: de-de. Did you mean `de-en`",
        ),
        (M2M, ("de", None), "`target_language` must be one of en, zh-Hant. Received: None. Name"),
        (M2M, (7, None), "`source_language` must be a code. Received: 7"),
        (Languages(directions=(("en", "de"),)), ("de", "en"), "direction: en-de. Received: de-en."),
    ],
)
def test_what_a_model_lacks_is_one_line_with_the_nearest(languages, named, message):
    with pytest.raises(InputError, match=message):
        languages.tokens_of(*named)


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


ONE = Languages(directions=(("en", "eo"),))
OPEN = languages_of_tags({"epo": ">>epo<<", "deu": ">>deu<<"})


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


@pytest.mark.parametrize(
    ("languages", "named", "message"),
    [
        (ONE, ("fr", "it"), "direction of the model: en-eo. Received: fr-it.$"),
        (ONE, ("eo", "en"), "direction of the model: en-eo. Received: eo-en.$"),
        (OPEN, ("fr", "it"), "direction of the model: any-eo, any-de. Received: fr-it.$"),
        (M2M, ("en", "zh-Hans"), "Received: en-zh-Hans.$"),
    ],
)
def test_named_languages_that_the_model_lacks_are_one_line(languages, named, message):
    with pytest.raises(InputError, match=message):
        named_directions(languages, named)


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
