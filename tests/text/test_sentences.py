"""Long texts in parts: nothing is lost, parts are few, and they end where sentences do."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from page_in_languages import PAGE
from sentence_ends import SENTENCES

from keras_transformer.base.errors import InputError
from keras_transformer.text.sentences import sentence_ends, space_after, split_text

# What ends sentences, what closes them, every kind of space, and words around them.
MARKS = list("aé漢3.!?…。！？\"'”»“)」（ \t\n\r\u00a0\u2028\u3000\x1c")
texts = st.text(alphabet=MARKS, max_size=60)


def at_most(characters):
    return lambda piece: len(piece) <= characters


def visible(text):
    return "".join(text.split())


def fewest_groups(lengths, limit):
    """Groups of neighbours, joined by one space, of at most `limit`: tries every last group."""
    fewest = [0]
    for end in range(1, len(lengths) + 1):
        fits = lambda start, end=end: sum(lengths[start:end]) + end - start - 1 <= limit  # noqa: E731
        fewest.append(min(fewest[start] + 1 for start in range(end) if fits(start)))
    return fewest[-1]


# Few characters and short texts, so that a part often occurs again in the sentence.
repeating_texts = st.text(alphabet="ab .\n", max_size=24)


@settings(max_examples=200)
@given(text=texts | repeating_texts, limit=st.integers(1, 61) | st.integers(1, 10))
@example(text="bbbbbbbb a a\nc.", limit=10)
def test_no_text_is_lost_and_every_piece_fits(text, limit):
    pieces = split_text(text, at_most(limit))
    assert visible("".join(pieces)) == visible(text)
    assert all(piece and piece == piece.strip() and len(piece) <= limit for piece in pieces)


@settings(max_examples=100)
@given(words=st.lists(st.integers(2, 12), min_size=1, max_size=17), spare=st.integers(0, 30))
def test_there_are_as_few_pieces_as_possible(words, spare):
    parts = ["A" * length + "." for length in words]
    lengths = [len(part) for part in parts]
    limit = max(lengths) + spare
    pieces = split_text(" ".join(parts), at_most(limit))
    assert " ".join(pieces) == " ".join(parts)
    assert len(pieces) == fewest_groups(lengths, limit)


LATIN = [["One.", "Two!", "Three?", "Four…", "Five"], ["Really?!", "Wait...", "No."]]
LATIN += [['He said: "Stop."', "(Nobody did.)", "“It ended.”", "‘So?’", "[It did.]"]]
LATIN += [["„Nein, nein.“", "»Doch, ja!«", "So."], ["«\u00a0Oui, oui.\u00a0»", "Non."]]
LATIN += [["It is 3.14 or v1.2.x, and (a.b) too!", "e.g.this one.", "Next."]]
SPACELESS = [["他说：“你好。”", "然后呢？", "真的！？」", "「はい。」", "そう\n", "終わり。"]]
SPACELESS += [["３．１４です．", "はい．"]]  # a wide number is not cut at its point
BY_MARKS = [(space, texts) for space in (" ", "\r\n\r\n", "\u2028") for texts in LATIN]


@pytest.mark.parametrize(("space", "expected"), BY_MARKS + [("", texts) for texts in SPACELESS])
def test_sentences_end_at_a_mark_before_a_space_or_at_one_of_chinese_and_japanese(space, expected):
    # Nothing longer is accepted, and nothing shorter either.
    whole = [sentence.strip() for sentence in expected]
    assert split_text(space.join(expected), whole.__contains__) == whole


def test_a_chinese_sentence_that_begins_with_a_quotation_goes_on_after_each_quotation():
    expected = ["“好的！”他说，“走吧！”他又说。", "然后呢？"]
    assert split_text("".join(expected), expected.__contains__, "zh") == expected
    # After other words, a quotation ends its sentence.
    expected = ["他说：“好的！”", "然后他走了。"]
    assert split_text("".join(expected), expected.__contains__, "zh") == expected


# Full stops and question marks, and what they stand behind and before.
ENDS = ["।", "॥", "۔", "؟", "።", "፧", "։", "။", "។", "៕", "｡", "．", "܀", "᙮", "᠃", "꓿", "‼", "⁇"]


@pytest.mark.parametrize("mark", ENDS)
@pytest.mark.parametrize("space", ["", " "])
def test_sentences_end_at_the_marks_of_every_script(mark, space):
    expected = [f"घर{mark}", f"ບ້ານ{mark}»", f"բառ{mark}{mark}", "ဒါ"]
    assert split_text(space.join(expected), expected.__contains__) == expected


@pytest.mark.parametrize("language", PAGE)
def test_a_page_of_any_language_is_split_into_its_sentences(language):
    # Thai ends sentences with a space.
    space = "\n" if language in ("Thai", "Tibetan") else " "
    sentences = PAGE[language]
    assert split_text(space.join(sentences), sentences.__contains__) == sentences


def test_a_sentence_that_does_not_fit_is_split_between_its_words():
    text = "Short. This one goes  on and on. End. Fin."
    expected = ["Short.", "This one", "goes  on", "and on.", "End. Fin."]
    assert split_text(text, at_most(9)) == expected
    parts = split_text("Yes. A very long one. No.", at_most(12))
    assert parts == ["Yes.", "A very long", "one. No."]
    # A word that does not fit is split too: no line ends a file.
    expected = ["See", "https://a", ".com/bcde", "fgh now."]
    assert split_text("See https://a.com/bcdefgh now.", at_most(9)) == expected
    # The last part of a sentence, which the next sentence joins, occurs twice in it.
    assert split_text("bbbbbbbb a a\nc.", at_most(10)) == ["bbbbbbbb a", "a\nc."]


@pytest.mark.parametrize(
    "graphemes",
    [
        ["ที่", "นี่", "มี", "น้ำ", "ดื่", "ม"],
        ["क्षि", "त्रि", "य", "हिं", "दी"] + ["न", "म", "स्ते"],
        ["🇩🇪", "🇫🇷", "👨\u200d👩\u200d👧", "👍🏽", "❤\ufe0f"],
        ["e\u0301", "o\u0302\u0323", "a", "\u1112\u1161\u11ab"],
    ],
)
def test_a_word_that_does_not_fit_is_cut_between_its_graphemes(graphemes):
    graphemes *= 5
    ends = set(itertools.accumulate(map(len, graphemes)))
    longest = max(map(len, graphemes))
    for limit in range(longest, longest + 9):
        pieces = split_text("".join(graphemes), at_most(limit))
        assert "".join(pieces) == "".join(graphemes)
        assert all(len(piece) <= limit for piece in pieces)
        cuts = [0, *itertools.accumulate(map(len, pieces))]
        assert ends.issuperset(cuts[1:])
        # As few pieces as possible: none has room for the next grapheme.
        for start, cut in itertools.pairwise(cuts[:-1]):
            assert min(end for end in ends if end > cut) - start > limit
    # A grapheme that does not fit is cut between its characters.
    assert split_text("a e\u0301\u0302\u0303b", at_most(2)) == ["a", "e\u0301", "\u0302\u0303", "b"]


def test_a_character_that_does_not_fit_by_itself_is_named():
    with pytest.raises(InputError, match="Each character must fit by itself. Received: 'ж'"):
        split_text("a жa", lambda part: part.isascii() and len(part) < 3)


ANNOTATED = "The <term_begin> dr.<term_as> Dr. med. Roth<term_end> sat "
ANNOTATED += "<term_begin> up<term_as> auf<term_end>. Yes."


@pytest.mark.parametrize("size", range(54, len(ANNOTATED) + 1))
def test_an_annotation_is_a_part_of_a_word(size):
    parts = split_text(ANNOTATED, at_most(size))
    assert " ".join(parts) == ANNOTATED
    assert all(part.count("<term_begin>") == part.count("<term_end>") for part in parts)
    # The only end of a sentence is the one before `Yes.`
    first = ANNOTATED.removesuffix(" Yes.")
    assert size < len(first) or parts[0].startswith(first)
    assert len(parts) == (1 if size >= len(ANNOTATED) else 2)


def test_sentences_end_before_and_after_an_annotation_and_none_in_it():
    term = "<term_begin>no. One<term_as>nein. Eins<term_end>"
    parts = split_text(f"It rains. {term} sits. Yes.", at_most(len(term) + 10))
    assert parts == ["It rains.", f"{term} sits.", "Yes."]


@pytest.mark.parametrize("text", ["." * 100_000 + "a", ".)" * 50_000, "。" * 100_000 + "a"])
def test_long_rows_of_marks_are_no_trap(text):
    # Tried once for each mark, they would take hours.
    assert visible("".join(split_text(text, at_most(100_001)))) == text
    with pytest.raises(InputError, match="Each character must fit by itself"):
        split_text(text, at_most(0))


@pytest.mark.parametrize(
    "end", [*"\n\r\v\f\x85\u2028\u2029\t", "\r\n", " \t ", " " * 3, "\u00a0" * 4]
)
def test_a_line_or_a_column_ends_a_sentence_without_a_mark(end):
    expected = ["one two", "three four"]
    assert split_text(end.join(expected), expected.__contains__) == expected


@pytest.mark.parametrize(
    ("sentences", "language"),
    [
        (["Dr. Gold has 3.5 dogs. ", "Is it so?  ", "No! "], "en"),
        (["他说：“你好。”", "然后呢？", "真的！"], "zh"),
        (["Am 3. Mai kam z. B. Anna. ", "So war es. "], "de"),
        (["Word " * 700 + "end. ", "Next. "], "en"),  # longer than what is looked at together
    ],
)
@pytest.mark.parametrize("line_break", ["", "\n"])
def test_a_sentence_ends_in_a_long_text_where_it_ends_in_a_short_one(
    sentences, language, line_break
):
    text = (sentences * (6_000 // len("".join(sentences)) + 2)) * 2
    text = [sentence + line_break * (index % 5 == 0) for index, sentence in enumerate(text)]
    ends = list(itertools.accumulate(map(len, text)))
    assert sentence_ends("".join(text), language) == ends


def with_ends(text, language):
    ends = [0, *sentence_ends(text, language)]
    return "|".join(text[start:end] for start, end in itertools.pairwise(ends))


@pytest.mark.parametrize("language", dict.fromkeys(language for language, _ in SENTENCES))
def test_the_sentences_of_a_language_end_where_a_reader_ends_them(language):
    expected = [text for code, text in SENTENCES if code == language]
    assert [with_ends(text.replace("|", ""), language) for text in expected] == expected


# Unicode's rule SB8: a sentence goes on at a full stop before a small letter, whatever the word.
LATIN_CODES = "af az bs ca cs cy da de en es et eu fi fr ga gl hr hu id is it lb lt lv ms mt nb nl "
LATIN_CODES += "nn no pl pt ro sk sl sq sv sw tr uz vi"
PROBES = dict.fromkeys(LATIN_CODES.split(), "Dd max. ee 19. ff (evtl.) gg ca. “hh” kkkkk. |Ii.")
PROBES |= dict.fromkeys("be bg kk mk ru sr uk".split(), "Дд макс. ее 19. фф (пр.) ггггг. |Ии.")
PROBES |= {"el": "Δδ μεγ. εε 19. φφ. |Ηη.", "hy": "Դդ մաքս. եե 19. ֆֆ։ |Իի։"}


@pytest.mark.parametrize(("language", "probe"), PROBES.items())
def test_no_sentence_ends_at_a_full_stop_before_a_small_letter(language, probe):
    assert with_ends(probe.replace("|", ""), language) == probe


@pytest.mark.parametrize("language", ["cs", "da", "de", "is", "lb", "sk"])
def test_an_ordinal_of_up_to_three_digits_ends_nothing(language):
    text = "Xx 1. Aa 19. Bb 365. Cc (2. Dd) 1999. |Ee x2. |Ff."
    assert with_ends(text.replace("|", ""), language) == text


# As sentencex's cases of Japanese have it.
@pytest.mark.parametrize(
    ("text", "language", "ends"),
    [
        ("“好的。”他说。", "zh", [8]),
        ("「はい。」そうだ。", "ja", [5, 9]),
        ("", "ja", []),
        ("东京。1号。", "zh", [3, 6]),
        ("東京。1号。", "ja", [6]),
    ],
)
def test_quotations_and_digits_are_of_their_sentences(text, language, ends):
    assert sentence_ends(text, language) == ends


KEEPING = ["สวัสดี", "ສະບາຍດີ", "សួស្តី", "မင်္ဂလာပါ", "བཀྲ་ཤིས", "안녕하세요", "12"]
KEEPING += ["Windows 是好的系统软件"]  # more Latin letters
SPACES = [("", "Ein Hund.", " "), ("", "สวัสดี", " "), ("", "12", ""), (" ", "一只狗。", "")]
SPACES += [(" ", text, " ") for text in ["Ein Hund.", *KEEPING]]
SPACES += [(space, "一只狗。", space) for space in ("\t", "  ", "\n", "\u00a0")]


@pytest.mark.parametrize(("space", "translation", "expected"), SPACES)
def test_the_space_after_a_translation_is_that_of_its_script(space, translation, expected):
    assert space_after(space, translation) == expected
