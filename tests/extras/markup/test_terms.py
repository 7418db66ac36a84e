"""Terms of a glossary, among tags and items."""

import re

import pytest
from markup_engines import SayingEngine, in_order, unchanged

from keras_transformer import Translator
from keras_transformer.base.errors import InputError

TERMS = {"dog": "Köter", "big dog": "Riesenköter", "the snow.": "R&D"}


def obedient(words):
    """Writes annotated translations, the other words as they are."""
    translation, is_in_term = [], False
    for position, word in enumerate(words):
        if word == "<term_begin>" or is_in_term:
            is_in_term = not word.endswith("<term_as>")
        else:
            translation.append((word.replace("<term_end>", ""), position))
    return translation


def test_a_model_of_annotations_reads_terms_with_their_translations(tmp_path):
    engine = SayingEngine(obedient, annotates=True)
    translator = Translator(engine)
    translation = translator.translate(["Dog dogs a big dog"], glossary=TERMS)[0].text
    assert engine.texts == [
        "<term_begin> Dog<term_as> Köter<term_end> dogs a "
        "<term_begin> big dog<term_as> Riesenköter<term_end>"
    ]
    assert translation == "Köter dogs a Riesenköter"
    file = tmp_path / "terms.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in TERMS.items()), encoding="utf-8")
    source = "The driver&rsquo;s&nbsp; <b>seat</b> is {x}"
    translator.translate([source], markup="html", glossary={"driver's seat": "Sitz"})
    term = "<term_begin> driver’s\u00a0 seat<term_as> Sitz<term_end>"
    assert engine.texts == [f"The {term} is <ph_1>"]
    # Terms are looked for in what the model reads: not in a tag, nor up to a tag alone.
    source = '<a href="dog">See</a> {x} &amp; <i>the big</i> dog at <b>the</b> snow. now'
    translation = translator.translate([source], markup="html", glossary=file)[0].text
    assert engine.texts[0].count("<term_as>") == 2
    words = re.sub("</?[ib]>", "", translation).split()
    assert words == '<a href="dog">See</a> {x} &amp; the Riesenköter at R&amp;D now'.split()
    for tag in ("<i>", "</i>", "<b>", "</b>"):
        assert translation.count(tag) == 1


def test_tags_enclose_annotated_terms_as_they_do_others():
    engine = SayingEngine(lambda words: obedient(words)[:0:-1], annotates=True)
    engine.source_tokenizer.tag_tokens = {"2de": "<2de>"}
    translator = Translator(engine)
    source = "a <b>dog</b> runs {x} <i>big dog</i> there"
    translation = translator.translate([source], tag="2de", markup="html", glossary=TERMS)[0].text
    assert translation == "there <i>Riesenköter</i> {x} runs <b>Köter</b> a"


class SearchingEngine(SayingEngine):
    """Takes phrases, as a run does."""

    capabilities = frozenset({"translate", "align", "phrases"})

    def translate(self, texts, alignment=False, phrases=None, **options):
        self.phrases = phrases
        return super().translate(texts, alignment, **options)


def test_a_search_writes_the_terms_where_a_model_has_no_annotations_or_where_it_shall():
    engine = SearchingEngine(unchanged)
    translator = Translator(engine)
    translations = translator.translate(["Dog  and a big dog", "cat"], glossary=TERMS)
    assert engine.phrases == [["Köter", "Riesenköter"], []]
    assert engine.texts == ["Dog  and a big dog", "cat"] and translations[1].text == "cat"
    source = '<a href="dog">the</a> {x} <i>big</i> dog'
    translation = translator.translate([source], markup="html", glossary=TERMS)[0].text
    assert engine.phrases == [["Riesenköter"]] and translation == source
    engine = SearchingEngine(unchanged, annotates=True)
    Translator(engine).translate(["dog"], glossary=TERMS)
    assert engine.phrases is None and "Köter" in engine.texts[0]
    Translator(engine).translate(["dog"], glossary=TERMS, glossary_by="constraints")
    assert engine.phrases == [["Köter"]] and engine.texts == ["dog"]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (None, "`glossary` needs a run folder, or a model trained with `data.glossary`"),
        ("constraints", "`glossary_by` needs a run folder: this export can"),
        ("annotations", "`glossary_by: annotations` needs a model trained with `data.glossary`"),
        ("both", "`glossary_by` must be one of constraints, annotations"),
    ],
)
def test_a_glossary_that_an_engine_cannot_keep_is_refused(by, message):
    with pytest.raises(InputError, match=message):
        Translator(SayingEngine(in_order)).translate(["a"], glossary=TERMS, glossary_by=by)
