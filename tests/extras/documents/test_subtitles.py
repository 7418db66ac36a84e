"""Subtitles: sentences that run over cues are translated whole, and all else stays."""

import html
import re

import numpy as np
import pytest
from fakes import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from markup_engines import SayingEngine, in_order, unchanged

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.documents import translate_document
from keras_transformer.extras.documents.document import Settings
from keras_transformer.extras.documents.subtitles import Subtitles
from keras_transformer.text.symbols import Placeholders

SUBRIP = """\
1
00:00:01,000 --> 00:00:02,000
The big dog

2
00:00:02,000 --> 00:00:03,000 X1:1 Y1:2
plays in the
garden. And he

3
00:00:03,500 --> 00:00:04,000
<i>sleeps now.</i>

4
00:00:05,000 --> 00:00:06,000
- Hello.
- {\\an8}Who is there?

5
00:00:07,000 --> 00:00:08,000

6
00:00:09,000 --> 00:00:10,000
He said <i>no</i> & left <b>

7
00:00:11,000 --> 00:00:12,000
42

more text

8
00:00:13,000 --> 00:00:14,000
♪ <font color="#fff">a song</font> ♪
"""
WEBVTT = """\
WEBVTT - two dogs

NOTE two
dogs

STYLE
::cue { color: red }

intro
00:01.000 --> 00:02.000 align:start
<v Bob>The big <b>dog</b> &amp; cat

00:02.000 --> 00:03.000
play in the garden.
<00:02.500>here
"""


def upper(document):
    """The words of cues in upper case."""
    words = r"(?<=\n)(?!\d\d:|\d+\n|NOTE|dogs|STYLE|::|intro|WEB)([^\n]+)"
    keep = r"(<[^>]*>|\{[^}]*\}|&\w+;)"

    def change(match):
        return "".join(
            part if number % 2 else part.upper()
            for number, part in enumerate(re.split(keep, match[0]))
        )

    return re.sub(words, change, document)


def translated(text, engine=None, suffix=".srt", codec="utf-8", **options):
    translator = Translator(engine or FakeEngine())
    content = translate_document(translator, text.encode(codec), suffix, **options)
    return content.decode(codec)


@pytest.mark.parametrize(("document", "suffix"), [(SUBRIP, ".srt"), (WEBVTT, ".vtt")])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_only_words_of_cues_change(document, suffix, line_end):
    source, expected = (text.replace("\n", line_end) for text in (document, upper(document)))
    assert translated(source, SayingEngine(unchanged), suffix, "utf-16") == source
    assert translated(source, FakeEngine(), suffix) == expected
    assert translated(source, SayingEngine(in_order, Placeholders()), suffix) == expected


def texts_of(document, suffix=".srt"):
    engine = FakeEngine()
    translated(document, engine, suffix, source_language=None)
    return engine.texts


def test_a_sentence_over_several_cues_is_one_text():
    assert texts_of(SUBRIP) == [
        "The big dog plays in the garden.",
        "And he sleeps now.",
        "Hello.",
        "Who is there?",
        "He said no & left",
        "42 more text",
        "a song",
    ]


def cue(number, *lines):
    return "\n".join([str(number), f"00:00:0{number},000 --> 00:00:0{number},900", *lines, "", ""])


class Saying(FakeEngine):
    """Writes some words, of which `places` tells which words of the source they translate."""

    capabilities = frozenset({"translate", "align"})

    def translate(self, texts, alignment=False, **options):
        target, source = self.words.split(), texts[0].split()
        sides = [tuple("▁" + word for word in side) for side in (target, source)]
        weights = np.eye(len(source))[self.places] if alignment else None
        fields = {"tokens": sides[0], "source_tokens": sides[1], "alignment": weights}
        return [Translation(self.words, 0.0, **fields) for _ in texts]


SENTENCE = cue(1, "when she came home") + cue(2, "the dog was asleep.")
DIVIDED = [
    # Where the words of the cues part: five of eight words translate the first cue.
    (
        "als sie nach Hause zurückkam, schlief der Hund.",
        [0, 1, 2, 3, 2, 7, 4, 5],
        ("als sie nach Hause zurückkam,", "schlief der Hund."),
    ),
    # Without an alignment lengths tell. Fewer words than cues leave the last empty.
    ("a b c d e f", None, ("a b c", "d e f")),
    ("Ja.", [0], ("Ja.", "")),
    ("她回家时狗在睡觉。", None, ("她回家时", "狗在睡觉。")),
]


@pytest.mark.parametrize(("words", "places", "expected"), DIVIDED)
def test_a_translation_is_divided_among_the_cues_of_its_sentence(words, places, expected):
    engine = Saying(words=words, places=places)
    if places is None:
        engine.capabilities = frozenset({"translate"})
    assert translated(SENTENCE, engine) == cue(1, expected[0]) + cue(2, expected[1])


@pytest.mark.parametrize(
    "times",
    [
        "0:0:2,8 --> 0:0:2.9",
        "00:00:02 --> 0:02",
        "00:00:02,1234-->00:00:02,98765 X1:1 Y1:2",
        "\t00:02.5 --> 00:03:500 line:0",
        "00: 00: 02,000 --> 00: 00: 03,000",
        "000:000:000002. --> 00:00:03",
    ],
)
@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
def test_times_are_read_as_players_read_them(times, suffix):
    text = cue(1, "one two.") + f"a name\n{times}\nthree.\n\n" + cue(3, "four.")
    text = "WEBVTT\n\n" * (suffix == ".vtt") + text
    words = re.compile("one two|three|four")
    assert translated(text, suffix=suffix) == words.sub(lambda match: match[0].upper(), text)


@pytest.mark.parametrize(
    "times", ["x --> 00:00:02", "-->", "00:00:02,000 -> 00:00:03,000", "00:00:02,000", "1 --> 2"]
)
def test_a_cue_whose_times_cannot_be_read_stays_and_is_told(times):
    text = cue(1, "one.") + f"2\n{times}\ntwo.\n\n" + cue(3, "three.")
    with pytest.warns(
        UserWarning, match="^document: cues whose times cannot be read.*: 1, .*line 6$"
    ):
        result = translated(text)
    assert result == text.replace("one", "ONE").replace("three", "THREE")


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".srt", "{0}{25}one two"),
        (".srt", "1\n00:00:01 -> 00:00:02\none"),
        (".vtt", "WEBVTT\n\n1 --> 2\none"),
        (".vtt", "one two"),
    ],
)
def test_subtitles_without_a_cue_that_can_be_read_are_an_error(suffix, text):
    with pytest.raises(InputError, match=r"^a\.b: expected lines with times"):
        translated(text, suffix=suffix, name="a.b")


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".srt", ""),
        (".srt", "\n"),
        (".vtt", "WEBVTT\n\nNOTE one\n"),
        (".srt", cue(1) + cue(2, "3")),
    ],
)
def test_subtitles_without_words_stay_as_they_are(suffix, text):
    with pytest.warns(UserWarning, match="nothing was found"):
        assert translated(text, suffix=suffix) == text


YOUTUBE = """\
WEBVTT
Kind: captions

00:00:00.160 --> 00:00:01.990 align:start position:0%
\u0020
when she came

00:00:01.990 --> 00:00:02.000
home.
\u0020
"""


def test_only_an_empty_line_ends_a_cue_of_webvtt():
    assert texts_of(YOUTUBE, ".vtt") == ["when she came home."]
    expected = YOUTUBE.replace("when she came", "WHEN SHE CAME").replace("home", "HOME")
    assert translated(YOUTUBE, suffix=".vtt") == expected


COLORS = "red green blue white black gray pink brown".split()


@pytest.mark.parametrize(
    ("cues", "texts"),
    [
        # Voices and other signs of a speaker
        ([["<v Bob>one"], ["<v Ann>two"]], ["one", "two"]),
        ([["<v.loud Bob>one</v> <v Ann>two"], ["<i><v Bob>three"]], ["one", "two", "three"]),
        ([["<v Bob>one</v>", "two"]], ["one", "two"]),
        ([["&gt;&gt; one"], [">>> two"], ["> three"]], ["one", "two > three"]),
        (
            [["one"], ["BOB: two"], ["MR. O'HARA (TV): 3 a"]],
            ["one", "BOB: two", "MR. O'HARA (TV): 3 a"],
        ),
        ([["one"], ["Bob: two"], ["I: three"], ["AT 12:30"]], ["one Bob: two I: three AT 12:30"]),
        # Captions in brackets: before speech, over lines and cues, after a sentence
        ([["one"], ["[two]"], ["three"]], ["one", "[two]", "three"]),
        ([["- (two) three"], ["four"]], ["(two)", "three four"]),
        ([["[one", "two]", "three"], ["four"]], ["[one two]", "three four"]),
        ([["[one"], ["two]"], ["three"]], ["[one two]", "three"]),
        ([["<i>[one]</i> two"]], ["[one]", "two"]),
        ([["one! (two)"], ["three"]], ["one!", "(two)", "three"]),
        ([["（一）", "二"]], ["（一）", "二"]),
        ([["one (two) three"], ["four (five)"], ["six"]], ["one (two) three four (five) six"]),
        # Music
        ([["one"], ["♪ two"], ["three ♪"], ["four"]], ["one", "two three", "four"]),
        ([["♪ one ♪", "♪ two ♪"], ["♫ three ♬ four"]], ["one", "two", "three", "four"]),
        ([["one"], ["# two #"], ["three"], ["#four"]], ["one", "two", "three #four"]),
        # Capitals, unless all cues have them, or an abbreviation is alone
        ([["one"], ["TWO THREE"], ["four"]], ["one", "TWO THREE", "four"]),
        ([["LAUGHTER", "one"]], ["LAUGHTER", "one"]),
        ([["ONE TWO"], ["FlVE SlX"], ["I'll go"]], ["ONE TWO FlVE SlX", "I'll go"]),
        ([["one"], ["I"], ["42"], ["NATO"], ["two"]], ["one I 42 NATO two"]),
        # A dash of a speaker, also before a number
        ([["one"], ["- two"], ["three"]], ["one", "two three"]),
        ([["- One", "- 2 dogs", "-3 degrees"]], ["One", "2 dogs -3 degrees"]),
        # Elements around several sentences, or in one of several cues
        (
            [["<i>One two.</i> Three. <b>Four.", "Five.</b> -5"]],
            ["One two.", "Three.", "Four.", "Five."],
        ),
        ([["one <i>two</i> three"], ["four."]], ["one two three", "four."]),
        # Sentences without marks have a few cues.
        ([[word] for word in [*COLORS, "last"]], [" ".join(COLORS), "last"]),
    ],
)
@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
def test_no_sentence_goes_over_speakers_captions_music_and_capitals(cues, texts, suffix):
    text = "".join(cue(number, *lines) for number, lines in enumerate(cues, 1))
    text = "WEBVTT\n\n" * (suffix == ".vtt") + text
    assert [one.replace("&gt;", ">") for one in texts_of(text, suffix)] == texts
    assert translated(text, SayingEngine(unchanged), suffix) == text
    words = [
        html.unescape(result).lower().split() for result in (text, translated(text, suffix=suffix))
    ]
    assert sorted(words[0]) == sorted(words[1])


@pytest.mark.parametrize(
    ("start", "texts"),
    [
        ("00:00:09,900", ["one two"]),
        ("00:00:10,000", ["one", "two"]),
        ("00:01:05,000", ["one", "two"]),
        ("01:00:05,000", ["one", "two"]),
        ("00:00:00,000", ["one", "two"]),  # The cue before it was shown later.
    ],
)
def test_a_sentence_has_no_pause_of_more_than_five_seconds(start, texts):
    text = f"1\n00:00:01,000 --> 00:00:04,000\none\n\n2\n{start} --> {start}\ntwo\n\n"
    assert texts_of(text) == texts


@pytest.mark.parametrize("placeholders", [Placeholders(), Placeholders(8)])
@pytest.mark.parametrize(
    ("following", "translation"),
    [("before you watch it.", "x " * 20), ("before you watch it with friends.", "now")],
)
def test_an_address_stays_in_its_cue_whatever_the_lengths(following, translation, placeholders):
    first = "please visit http://www.example.com/films"

    def say(words):
        count = len(words) - len(following.split())
        return unchanged(words[:count]) + [(word, count + 1) for word in translation.split()]

    text = cue(1, first) + cue(2, following)
    result = translated(text, SayingEngine(say, placeholders))
    assert result == cue(1, first) + cue(2, translation.strip())


@pytest.mark.parametrize(
    ("before", "source", "translation", "num_lines"),
    [
        ("a", "a", "a bc " * 9, 2),  # 44 columns
        ("a", "a", "a bc " * 8, 1),
        ("ab " * 15, "a", "a bc " * 9, 1),  # 44 columns in the document
        ("ab " * 15, "a", "a bc " * 10, 2),
        ("a", "a", "我的狗" * 8, 2),  # 48 columns
        ("a", "a", "我的狗" * 7, 1),
    ],
)
def test_a_line_is_divided_if_all_lines_of_the_document_are_shorter(
    before, source, translation, num_lines
):
    texts = iter([before, translation])

    class Engine(FakeEngine):
        def translate(self, sources, **options):
            return [Translation(next(texts).strip(), 0.0) for _ in sources]

    result = translated(cue(1, before) + cue(2, "- " + source), Engine())
    assert len(result.split("\n\n")[1].split("\n")) == 2 + num_lines


@pytest.mark.parametrize(
    "line", ["a&lrm;b&nbsp;c &shy;", "a <b &amp; c", "< 00:01.000>a &b; &lt", "a &am&amp; <v b"]
)
def test_a_copy_in_webvtt_is_the_same_however_its_signs_are_written(line):
    text = f"WEBVTT\n\n00:01.000 --> 00:02.000\n{line}\n"
    assert translated(text, SayingEngine(unchanged), ".vtt") == text


def test_lengths_of_cues_of_webvtt_are_those_that_are_seen():
    times = "00:01.000 --> 00:02.000"
    text = f"WEBVTT\n\n{times}\n&amp;&amp;&amp; b\n\n{times}\nc d e\n"

    class Engine(FakeEngine):
        def translate(self, sources, **options):
            return [Translation("x x < don't", 0.0)]

    expected = text.replace("&amp;&amp;&amp; b", "x x &lt;").replace("c d e", "don't")
    assert translated(text, Engine(), ".vtt") == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["one two three", "four five six"], ["ONE TWO THREE", "FOUR FIVE SIX"]),
        (["one", "two three", "four"], ["ONE TWO", "THREE FOUR"]),
        (["one, two three four"], ["ONE, TWO THREE FOUR"]),
        (["- one two.", "- three."], ["- ONE TWO.", "- THREE."]),
        (["- one", "two.", "- three."], ["- ONE", "TWO.", "- THREE."]),
        (
            ['<font color="a b">one <i>two</i>', "three</font>"],
            ['<font color="a b">ONE <i>TWO</i>', "THREE</font>"],
        ),
        # No space is at the beginning or the end of an element.
        (["one <i>", "two. Three</i> four"], ["ONE <i>TWO.", "THREE</i> FOUR"]),
        (["<i>One. Two", "</i> three"], ["<i>ONE.", "TWO</i> THREE"]),
        (["one <i>", "two"], ["ONE", "<i>TWO"]),
        (["one", "</i> two"], ["ONE</i>", "TWO"]),
        (["one <i> two </i> three"], ["ONE <i>TWO</i> THREE"]),
        (["one<i> two </i>three"], ["ONE <i>TWO</i> THREE"]),
        (["<i> one </i>"], ["<i> ONE </i>"]),
        # The end of an element whose beginning is in another element has nothing to end.
        (["<i><b>one</i> two</b> three"], ["<i><b>ONE</i> TWO</b> THREE"]),
    ],
)
def test_a_cue_has_the_lines_of_its_source_and_at_most_two(lines, expected):
    assert translated(cue(1, *lines)) == cue(1, *expected)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_long_translation_gets_a_second_line_near_its_middle(line_end):
    class Engine(FakeEngine):
        def translate(self, texts, **options):
            return [Translation("eins zwei drei vier fünf, sechs sieben acht neun", 0.0)]

    cues = cue(1, "one two"), cue(1, "eins zwei drei vier fünf,", "sechs sieben acht neun")
    source, expected = (text.replace("\n", line_end) for text in cues)
    assert translated(source, Engine()) == expected


def test_line_breaks_and_double_spaces_of_a_translation_become_spaces():
    document = Subtitles(cue(1, "one"), Settings(), is_webvtt=False)
    assert document.written([Translation("eins  zwei\n\ndrei", 0.0)]) == cue(1, "eins zwei drei")


def test_a_translation_without_a_tag_of_its_source_is_left():
    document = Subtitles(cue(1, "one <b>two</b>."), Settings(), is_webvtt=False)
    for text, expected in [("eins zwei.", "one <b>two</b>."), ("<x0>zwei</x0>", "<b>zwei</b>")]:
        assert document.written([Translation(text, 0.0)]) == cue(1, expected)


@pytest.mark.parametrize(
    ("language", "texts"),
    [("de-AT", ["Am 3. Mai kam er.", "Ja."]), (None, ["Am 3.", "Mai kam er.", "Ja."])],
)
def test_sentences_over_cues_end_as_in_the_language_of_the_source(language, texts):
    text = cue(1, "Am 3.") + cue(2, "Mai kam er. Ja.")
    assert Subtitles(text, Settings(source_language=language), is_webvtt=False).texts == texts


LINE = st.lists(
    st.sampled_from(["two", "dogs.", "<i>a</i>", "-", "- b", "{\\an8}", "&", "5", "<b>", "</i>"]),
    min_size=1,
    max_size=5,
).map(" ".join)


@settings(max_examples=50)
@given(st.lists(st.lists(LINE, max_size=3), min_size=1, max_size=4))
def test_any_cues_keep_their_tags_and_a_copy_is_the_same(cues):
    text = "".join(cue(number, *lines) for number, lines in enumerate(cues))
    assert translated(text, SayingEngine(unchanged)) == text
    webvtt = "WEBVTT\n\n" + text.replace("&", "&amp;")
    assert translated(webvtt, SayingEngine(unchanged), ".vtt") == webvtt
    result = translated(text)
    signs = [re.findall(r"<.*?>|\{.*?\}|-+|&|\d[\d:,]*", document) for document in (text, result)]
    assert sorted(signs[0]) == sorted(signs[1])
