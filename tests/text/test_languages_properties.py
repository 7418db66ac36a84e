"""Languages and directions of many kinds: what goes in comes out, and arguments by the rules."""

import itertools

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.text.languages import (
    Direction,
    Languages,
    codes_of,
    languages_of_directions,
)

_SIDES = ("source", "target", None)


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


def _all_languages():
    codes = ["en", "de", "pt"]
    pairs = [*itertools.permutations(codes, 2), ("en", "en"), (None, "de"), (None, "pt")]
    directions = [
        (),
        *itertools.combinations(pairs, 2),
        *itertools.combinations(pairs, 6),
        *itertools.combinations(pairs, 7),
    ]
    for number, chosen in enumerate(directions):
        sides = [_SIDES[number % 3], _SIDES[number // 3 % 3], _SIDES[number // 2 % 3]]
        if any(source is None for source, _ in chosen) and "source" in sides:
            sides = ["target" if side == "source" else side for side in sides]
        yield Languages({code: f"<{code}>" for code in codes}, *sides, chosen, number % 2 == 0)


def test_languages_of_any_directions_are_read_as_they_were_written(tmp_path):
    for languages in _all_languages():
        languages.save(tmp_path / "languages.json")
        assert Languages.load(tmp_path / "languages.json") == languages
        assert Languages.from_dict(languages.to_dict()) == languages


def _sides(languages):
    return languages.source_prefix, languages.source_suffix, languages.target_prefix


def test_a_language_may_be_left_out_where_one_is_possible_or_no_token_needs_it():
    """All arguments of many languages, by the docstring."""
    answers = set()
    for languages in _all_languages():
        needed = set(_sides(languages)) - {None}
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
                    for side in _sides(languages)
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
