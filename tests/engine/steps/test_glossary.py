"""Terms of a glossary: found, annotated and drawn for training."""

import os
import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.base.errors import InputError
from keras_transformer.engine.steps import glossary as module
from keras_transformer.text import Tokenizer
from keras_transformer.text.folding import fold
from keras_transformer.text.patterns import is_word_end, is_word_start


def without_annotations(text):
    return re.sub("<term_begin> |<term_as> .*?<term_end>", "", text, flags=re.DOTALL)


TERMS = {"dog": "Köter", "big dog": "Riesenköter", "dog food": "Futter", ".NET": "Netz"}
GLOSSARY = module.Glossary({**TERMS, "犬": "Inu", "the snow.": "R&D"}.items())


WHOLE_WORDS = [("Dog dogs a big dog", ["Köter", "Riesenköter"])]
WHOLE_WORDS += [("dog food, dog foods", ["Futter", "Köter"])]
WHOLE_WORDS += [("doghouse hotdog dog_1 dog-house", ["Köter"])]
WHOLE_WORDS += [("in the snow. The snow.", ["R&D", "R&D"])]
WHOLE_WORDS += [(".NET ASP.NET (dog)", ["Netz", "Köter"]), ("<dog> <ph_1> <2dog> dog", ["Köter"])]
WHOLE_WORDS += [("犬 and 犬犬", ["Inu"] * 3), ("", [])]


@pytest.mark.parametrize(("text", "expected"), WHOLE_WORDS)
def test_terms_are_whole_words_the_longest_first_and_none_in_symbols(text, expected):
    assert [match.translation for match in GLOSSARY.matches(text)] == expected


def test_the_checksum_does_not_depend_on_the_order_of_terms():
    rows = [("dog", "Köter"), ("cat", "Katze"), ("dog", "Hund")]
    digests = [module.Glossary(rows[i:] + rows[:i]).digest for i in range(3)]
    # In the first, the other translation of "dog" comes first, and so it is the one that is taken.
    assert digests[0] != digests[1] == digests[2]


PARTS = ["a", "a ", "b", "ab", "A", "!", "-", " ", "<", "<a>", ">", "犬", "か", "\u3099", "㍿"]
PARTS += ["会", "社", "é", "e\u0301", "ﬁ", "f", "i", "\u00ad", "개", "’", "'"]


def naive_matches(rows, text):
    """Tries all terms, the longest first, at each word and sign of a text."""
    folded, matches, end = fold(text), [], 0
    terms = {}
    for term, translation in rows:
        terms.setdefault(fold(term).text.strip(), translation)
    for term, translation in list(terms.items()):
        terms.setdefault(term[0].upper() + term[1:], translation)
    for unit in module._UNIT.finditer(folded.text):
        for term in sorted(terms, key=len, reverse=True):
            start, stop = unit.start(), unit.start() + len(term)
            is_term = folded.text[start:stop] == term and module._UNIT.match(term)[0] == unit[0]
            is_whole = is_word_start(folded.text, start) and is_word_end(folded.text, stop)
            if start >= end and is_term and is_whole and folded.span(start, stop):
                matches.append((*folded.span(start, stop), terms[term]))
                end = stop
    return matches


@given(
    st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("".join), max_size=9),
    st.lists(st.sampled_from(PARTS), max_size=30).map("".join),
)
def test_the_terms_of_a_text_are_found_as_if_all_were_tried_at_each_word(terms, text):
    rows = [(term, str(number)) for number, term in enumerate(["a", *terms])]
    rows = [row for row in rows if fold(row[0]).text.strip()]
    assert module.Glossary(rows).matches(text) == naive_matches(rows, text)


FIRST_LETTERS = ["new York office", "iPhone case", "eBay", "éclair", "犬 House", "ΔS", "3D print"]
FIRST_LETTERS += ["x", "ВУЗ", "élan Vital", "the dog", "-ish Word"]


@pytest.mark.parametrize("term", FIRST_LETTERS)
def test_a_term_matches_as_written_or_with_its_first_letter_in_upper_case(term):
    glossary = module.Glossary([(term, "x"), ("another term", "y")])
    expected = {term, term[0].upper() + term[1:]}
    # Each way to write each of its letters, one at a time, and ways to write all of them.
    variants = {
        term[:i] + case(term[i]) + term[i + 1 :]
        for i in range(len(term))
        for case in (str.upper, str.lower)
    }
    variants |= {case(term) for case in (str.upper, str.lower, str.title, str.capitalize)}
    for text in variants | expected:
        found = [match.translation for match in glossary.matches(f"({text}) is here")]
        assert found == ["x"] * (text in expected), text


@pytest.mark.parametrize("order", [1, -1])
def test_a_row_of_its_own_wins_over_the_upper_case_of_another_row(order):
    rows = [("new York", "a"), ("New York", "b"), ("polish", "c"), ("Polish", "d")][::order]
    glossary = module.Glossary(rows)
    for term, translation in rows:
        assert glossary.matches(term) == [(0, len(term), translation)]


WORD_ENDS = [("घर", "घर में, घरों में", 1), ("cafe", "cafe\u0301 cafe", 1)]
WORD_ENDS += [("می", "می‌خواهم می", 1), ("မီး", "မီးမီး", 2)]
WORD_ENDS += [("か", "か\u3099 か", 1)]  # not the half of が
WORD_ENDS += [("개", "나는 개가 있다", 1), ("dog", "犬dog犬 2dog", 1), ("dog", "dog\u00adhouse", 0)]
WORD_ENDS += [("会社", "㍿会社", 1), ("株式", "㍿株式", 1)]  # not a part of one character
WORD_ENDS += [("epo", ">>epo<< epo", 1)]  # a tag of an imported model is no word


@pytest.mark.parametrize(("term", "text", "count"), WORD_ENDS)
def test_words_end_with_letters_and_marks_and_anywhere_in_spaceless_scripts(term, text, count):
    matches = module.Glossary([(term, "x")]).matches(text)
    assert [text[match.start : match.stop] for match in matches] == [term] * count
    # A pair of texts has the term on both sides, or on none.
    assert len(module.Glossary([("t", term)]).matches("t", text)) == bool(count)


UNSEEN_DIFFERENCES = [("driver's seat", "driver’s seat"), ("driver’s seat", "driver's seat")]
UNSEEN_DIFFERENCES += [("driver's seat", "driverʼs\u00a0\u202fseat")]
UNSEEN_DIFFERENCES += [('a "big" dog', "a “big” dog"), ("re-entry", "re\u2011entry")]
UNSEEN_DIFFERENCES += [("big dog", "big  dog"), ("big dog", "big  \u200bdog")]
UNSEEN_DIFFERENCES += [("big\u00a0dog", "big\t \u200b dog"), ("café", "cafe\u0301")]
UNSEEN_DIFFERENCES += [("cafe\u0301", "café"), ("개", "\u1100\u1162")]
UNSEEN_DIFFERENCES += [("steering", "steer\u00ading"), ("steer\u00ading", "stee\u200bri\u2060ng")]
UNSEEN_DIFFERENCES += [("rack 12", "ｒａｃｋ　１２"), ("ガス", "ｶﾞｽ"), ("office", "o\ufb03ce")]
UNSEEN_DIFFERENCES += [("istanbul", "İstanbul"), ("istanbul", "I\u0307stanbul")]
UNSEEN_DIFFERENCES += [("İstanbul", "I\u0307stanbul")]
UNSEEN_DIFFERENCES += [("istanbul", "i\u0307stanbul")]  # what `"İ".lower()` gives
UNSEEN_DIFFERENCES += [("ılık", "Ilık")]


@pytest.mark.parametrize(("term", "variant"), UNSEEN_DIFFERENCES)
@pytest.mark.parametrize("rest", ["", " İ\u0307 a\u0301\u00ad \ufb01 ㍿  "])
def test_differences_that_nobody_sees_do_not_hide_a_term(term, variant, rest):
    glossary, text = module.Glossary([(term, "x")]), f"{rest}“{variant}”{rest}"
    (match,) = glossary.matches(text)
    assert text[match.start : match.stop] == variant
    annotated = module.annotate(text, [match])
    assert f"<term_begin> {variant}<term_as> x<term_end>" in annotated
    assert without_annotations(annotated) == text
    assert module.Glossary([("t", term)]).matches("t", text) == [(0, 1, term)]


def test_a_letter_with_a_dot_and_one_without_are_two():
    assert module.Glossary([("ILIK", "x")]).matches("ılık") == []


WORDS = ["a", "dog", "Dog", "big", "dogs", "<ph_1>", "<2de>", "the", "snow.", "(dog)", "x\u00a0"]


def random_text(rng):
    return "".join(rng.choice(WORDS) + rng.choice([" ", " ", "", "  "]) for _ in range(9))


def test_a_thousand_annotated_texts_are_the_texts_without_their_annotations():
    rng = random.Random(0)
    for _ in range(1000):
        text = random_text(rng)
        matches = GLOSSARY.matches(text)
        marked = module.annotate(text, matches)
        assert without_annotations(marked) == text
        for match, shown in zip(
            matches, re.findall("<term_begin> (.*?)<term_as> (.*?)<term_end>", marked), strict=True
        ):
            assert shown == (text[match.start : match.stop], match.translation)
        # Each character comes from one of the text, in order; a translation's from its term.
        indices, read = module.origins(marked), "".join(marked.split())
        plain = "".join(text.split())
        assert len(indices) == len(read)
        assert list(dict.fromkeys(indices[indices >= 0])) == list(range(len(plain)))
        for match in re.finditer("Köter|Riesenköter", read):
            last = indices[match.start()]
            assert set(indices[match.start() : match.end()]) == {last} and plain[last] == "g"


def test_symbols_that_a_text_or_a_glossary_spells_are_none():
    glossary = module.Glossary({"a<term_as>": "b<term_end>", "dog": "x"}.items())
    text = "<term_begin> dog<term_as> y<term_end> a<term_as>"
    annotated = module.annotate(text, glossary.matches(text))
    assert [annotated.count(symbol) for symbol in module.TERM_SYMBOLS] == [2, 2, 2]
    assert without_annotations(annotated) == text.replace("<term_", "term_")


def test_annotations_are_single_tokens_around_the_tokens_of_the_words():
    texts = ["a rack of steel", "ein Gestell aus Stahl"] * 9
    tokenizer = Tokenizer.train_from_texts(texts, 28, tags=("2de",), terms=True)
    assert tokenizer.annotates_terms and tokenizer.tags == ("2de",)
    assert not Tokenizer.train_from_texts(texts, 24).annotates_terms
    glossary = module.Glossary([("rack", "Gestell")])
    pieces = tokenizer.pieces(module.annotate("a rack of", glossary.matches("a rack of")))
    words = [tokenizer.pieces(word) for word in ("a", "rack", "Gestell", "of")]
    begin, between, end = ([symbol] for symbol in module.TERM_SYMBOLS)
    assert pieces == [*words[0], "▁", *begin, *words[1], *between, *words[2], *end, *words[3]]


INFLECTED = [("Ein Hund.", True), ("Die Hunde bellen", True), ("HUNDE", True)]
INFLECTED += [("Eine Hundehütte", False)]  # more than half as long again
INFLECTED += [("Ein Windhund", False), ("Katzen", False)]


@pytest.mark.parametrize(("target", "is_there"), INFLECTED)
def test_a_pair_has_a_term_whose_translation_it_has_inflected_or_not(target, is_there):
    matches = module.Glossary([("dog", "Köter"), ("dog", "Hund")]).matches("A dog.", target)
    assert [match.translation for match in matches] == ["Hund"] * is_there


def test_up_to_three_terms_of_a_training_pair_are_drawn():
    rows = [(f"s{i}", f"t{i}") for i in range(6)]
    pair = " ".join(s for s, _ in rows), " ".join(t for _, t in rows[:5])
    rng, seen, counts = np.random.default_rng(0), set(), set()
    for _ in range(100):
        source, target = module.Glossary(rows).in_training(*pair, rng)
        terms = re.findall(r"<term_begin> s(\d)<term_as> t(\d)<term_end>", source)
        assert target == pair[1] and without_annotations(source) == pair[0]
        assert all(one == other for one, other in terms)
        seen |= set(terms)
        counts.add(len(terms))
    assert counts == {1, 2, 3} and len(seen) == 5
    assert module.Glossary(rows).in_training("none", "none", rng) == ("none", "none")


NO_GLOSSARIES = [("a\tb\nc", "line 2: expected a term and its translation")]
NO_GLOSSARIES += [("Source\tTarget\na\tb", "line 1: expected a term.*names of columns. Delete")]
NO_GLOSSARIES += [("English\tGerman\na\tb", "line 1: .*names of columns. Delete")]
NO_GLOSSARIES += [('a\tb\n"c\td', 'line 2: a cell of a TSV file must not begin with "')]
NO_GLOSSARIES += [(f"a\tb\n{'c' * 501}\td", "terms.tsv: .*at most 500 characters.*: 501, 'cc")]
NO_GLOSSARIES += [(f"c\t{'d ' * 251}", "at most 500 characters. Received: 502, 'c'")]
NO_GLOSSARIES += [("a\t ", "line 1: expected"), ("a\t\u200b", "line 1: expected")]


@pytest.mark.parametrize(("content", "message"), NO_GLOSSARIES)
def test_a_file_that_is_no_glossary_is_refused(tmp_path, content, message):
    (tmp_path / "terms.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        module.Glossary.load(tmp_path / "terms.tsv")


def test_a_term_has_as_many_characters_as_are_allowed():
    term = "a " * 249 + "bc"
    assert module.Glossary({term: term}.items()).matches(f"x {term}") == [(2, 502, term)]


SAVED = [("terms.tsv", '5" disk\tPlatte\r\nrack\tGestell\r\n')]
SAVED += [("terms.csv", '"5"" disk"\t"Platte"\nrack\t"Ge\nstell"')]
SAVED += [("terms.csv", '\ufeff"5"" disk";Platte\r\nrack;Gestell\r\n')]
SAVED += [("terms.csv", 'rack,Gestell\n"5"" disk","Platte"\n')]


@pytest.mark.parametrize(("name", "content"), SAVED)
def test_a_glossary_that_a_spreadsheet_has_saved_has_its_terms(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    matches = module.Glossary.load(tmp_path / name).matches('a 5" disk in a rack')
    expected = "Ge stell" if "\nstell" in content else "Gestell"
    assert [match.translation for match in matches] == ["Platte", expected]


@pytest.mark.parametrize(("size", "is_form"), [(4, True), (6, True), (7, False)])
def test_a_form_is_at_most_one_and_a_half_times_as_long(size, is_form):
    glossary = module.Glossary([("dog", "hund")])
    assert len(glossary.matches("a dog", "ein " + "hundxyz"[:size])) == is_form


def test_the_search_writes_the_translation_of_a_term_as_often_as_the_text_has_it():
    glossary = module.Glossary([("dog", "Hund"), ("hound", "Hund"), ("cat", "Katze")])
    step = module.GlossaryStep(glossary, annotates=False)
    assert step.phrases("dog cat dog hound") == ["Hund", "Katze", "Hund", "Hund"]
    assert module.GlossaryStep(glossary, annotates=True).phrases("dog") == []


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("dog\tHund\n", encoding="utf-8")
    first = module.glossary_of(path)
    assert module.glossary_of(path) is first
    later = path.stat().st_mtime_ns + 1
    path.write_text("cat\tFell\n", encoding="utf-8")  # of the same size
    os.utime(path, ns=(later, later))
    assert module.glossary_of(path).matches("a cat") and not module.glossary_of(path).matches("dog")
