"""Batches of an export: options by signature, rows of outputs, warm-up, errors."""

import dataclasses
import math

import pytest
from fakes import FakeTokenizer
from upper_case import Engine, outputs_of

from keras_transformer.decoding.search_options import FILTERS, DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.export.saved_model.engine import SavedModelEngine
from keras_transformer.options import FLOAT32
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.model import signatures_of
from keras_transformer.serving.protocol import Rejection
from keras_transformer.steps.glossary import Glossary
from keras_transformer.text.languages import Languages

NUMBERED = {"translation": "A", "score": 0.1, "log_probability": 0.0}
BEAM = {"translation": ["A", ""], "score": [0.1, -math.inf], "log_probability": [0.0, 0.0]}
ALIGNED = {
    **NUMBERED,
    "source_tokens": ["a"],
    "target_tokens": ["a", "</s>"],
    "alignment": [[0.1], [0.9]],
}
SAMPLING = {name: getattr(DecodingOptions, name) for name in FILTERS}
SAMPLING |= {"temperature": 0.5, "top_k": 3, "top_p": 0.25}


SIGNATURES = [("serving_default", {}, {}, {"translation": "A", "score": 0.1})]
SIGNATURES += [("greedy", {}, {"beam_size": 1}, NUMBERED), ("beam", {}, {"n_best": 2}, BEAM)]
SIGNATURES += [("align", {}, {"alignment": True}, ALIGNED)]
SIGNATURES += [("sample", SAMPLING, {"sampling": True, **SAMPLING}, NUMBERED)]


@pytest.mark.parametrize(("name", "inputs", "options", "row"), SIGNATURES)
def test_a_signature_is_an_option_of_the_engine(load, name, inputs, options, row):
    engine = Engine()
    (result,) = outputs_of(load(engine), name, [{"text": "a", **inputs}])
    if "alignment" in row:  # Of float32: 0.1 is not 0.10000000149011612.
        assert result["alignment"].dtype == "float32"
        result["alignment"] = [
            [float(str(weight)) for weight in line] for line in result["alignment"]
        ]
    assert result == row
    assert engine.calls == [(["a"], {"long_input": "truncate", **options})]
    scores = [{"score": -0.5, "log_probability": -1.5}]
    assert outputs_of(load(engine), "score", [{"source": "a", "target": "b"}]) == scores


def test_a_beam_with_fewer_hypotheses_is_filled_with_empty_ones(load):
    class Single(Engine):
        def translate(self, texts, **options):
            one = super().translate(texts, **options)
            return [dataclasses.replace(translation, alternatives=()) for translation in one]

    (row,) = outputs_of(load(Single()), "beam", [{"text": "a"}])
    fillers = {"translation": "", "score": -math.inf, "log_probability": -math.inf}
    assert row == {name: [value, fillers[name]] for name, value in NUMBERED.items()}


OUT_OF_RANGE = [("temperature", math.nan, 1e-6), ("temperature", math.inf, FLOAT32 / 2)]
OUT_OF_RANGE += [("top_k", -3, 0), ("top_p", math.nan, 1.0), ("top_p", 7.0, 1.0)]
OUT_OF_RANGE += [("top_p", 0.0, 1e-9)]


@pytest.mark.parametrize(("option", "value", "taken"), OUT_OF_RANGE)
def test_sampling_out_of_range_is_the_nearest_value_as_in_a_saved_model(load, option, value, taken):
    engine = Engine()
    outputs_of(load(engine), "sample", [{"text": "a", **SAMPLING, option: value}])
    ((_, options),) = engine.calls
    settings = {name: options[name] for name in SAMPLING}
    assert settings == {**SAMPLING, option: taken}
    DecodingOptions(sampling=True, **settings)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("labels", ["no", "yes"], "expected a model that writes text. Received: a classifier."),
        ("reads_sources", False, "the server takes no language models; "),
    ],
)
def test_a_model_that_translates_nothing_is_refused(load, monkeypatch, field, value, says):
    monkeypatch.setattr(Engine, field, value)
    with pytest.raises(InputError, match=f"^folder: {says}[^\n]*$"):
        load(Engine())


def test_signatures_are_those_that_the_engine_is_capable_of():
    engine = Engine("litert", n_best=3)
    engine.capabilities = frozenset({"translate"})
    served = signatures_of(engine)
    assert set(served) == {"serving_default", "greedy", "beam"}
    assert served["beam"].outputs["score"].shape == (3,)
    text = {"dtype": "string", "shape": [None]}
    one = {"inputs": {"text": text}, "outputs": {"translation": text}}
    served = signatures_of(Engine(signatures={"serving_default": one, "greedy": one, "other": one}))
    assert set(served) == {"serving_default", "greedy"}
    assert set(served["greedy"].outputs) == {"translation"}


def test_the_warm_up_runs_each_shape_that_is_compiled(load):
    engine = Engine("saved_model", shapes={"rows": [1, 2, 4, 8], "source_lengths": [16, 32, 48]})
    options = ServerOptions(model="folder", max_batch_size=3, warm_up_tokens=19)
    assert load(engine).warm_up(options) == 6
    shapes = {(len(texts), len(texts[0].split())) for texts, _ in engine.calls}
    assert shapes == {(rows, tokens) for rows in (1, 2, 4) for tokens in (15, 19)}
    assert load(Engine()).warm_up(ServerOptions(model="folder", warm_up_tokens=0)) == 0
    unknown = ServerOptions(model="folder", warm_up_signatures="score")
    with pytest.raises(InputError, match="must name signatures that take only text.*score"):
        load(Engine()).warm_up(unknown)


@pytest.mark.parametrize("compiles", [True, False])
def test_only_an_engine_that_compiles_tells_of_compiling(load, compiles):
    shapes = {"shapes": {"rows": [1], "source_lengths": [16]}} if compiles else {}
    told, words = [], ("compiling", "compiled") if compiles else ("warming up", "warmed up")
    engine = Engine("saved_model" if compiles else "litert", **shapes)
    assert load(engine).warm_up(ServerOptions(model="folder"), told.append) == 1
    assert told == [f"{words[0]} 1 shapes of batches", f"{words[1]} 1 of 1 shapes of batches"]


@pytest.mark.parametrize("sides", [{}, {"source_prefix": "target"}, {"source_suffix": "source"}])
def test_a_warm_source_has_the_length_of_a_shape_with_the_tokens_of_its_languages(load, sides):
    engine = Engine("saved_model", shapes={"rows": [1], "source_lengths": [2, 16, 32]})
    engine.languages = Languages({"de": "<de>", "en": "<en>"}, **sides)
    load(engine).warm_up(ServerOptions(model="folder", max_batch_size=1, warm_up_tokens=19))
    lengths = [len(text.split()) + 1 + len(sides) for (text,), _ in engine.calls]
    assert lengths == [2 + len(sides), 16, 20]  # A text has a token at least.


@pytest.mark.tensorflow
def test_a_default_markup_is_that_of_the_signatures_which_can_do_it(load, toy):
    engine, html = SavedModelEngine(toy / "1"), {"markup": "html"}
    defaults = load(engine, markup="html").default_options
    assert (defaults["serving_default"], defaults["align"], defaults["beam"]) == (html, html, {})
    names, placeholders = load(engine).signatures, {"markup": "placeholders"}
    defaults = load(engine, markup="placeholders").default_options
    assert defaults == dict.fromkeys(names, placeholders)
    assert load(engine).default_options == dict.fromkeys(names, {})


def test_a_default_markup_is_warm_and_a_model_that_cannot_do_it_is_refused(load):
    engine = Engine()
    model = load(engine, markup="html")
    assert model.default_options["score"] == {}
    assert model.warm_up(ServerOptions(model="folder")) == 1
    ((_, options),) = [call for call in engine.calls if call[0]]
    assert options["alignment"]
    engine.capabilities = frozenset({"translate"})
    with pytest.raises(InputError, match="^`markup=html` needs alignments: .* this export.$"):
        load(engine, markup="html")


def test_a_text_at_fault_is_a_rejection_of_one_line(load):
    with pytest.raises(Rejection, match="More.") as caught:
        outputs_of(load(Engine()), "serving_default", [{"text": "a"}, {"text": "bad"}])
    assert caught.value.status == 400 and "\n" not in str(caught.value)


@pytest.mark.parametrize("texts", [0, 1, 3, 4])
def test_a_batch_that_nobody_waits_for_ends_before_its_next_text(load, monkeypatch, texts):
    engine, read = Engine(terms=True), []
    monkeypatch.setattr(Glossary, "matches", lambda self, text: read.append(text) or [])
    rows = [{"text": f"text {number}"} for number in range(4)]
    with pytest.raises(Rejection) as caught:
        outputs_of(
            load(engine),
            "serving_default",
            rows,
            {"glossary": (("a", "b"),)},
            lambda: len(read) < texts,
        )
    assert caught.value.status == 504
    assert read == [row["text"] for row in rows[:texts]] and not engine.calls


def test_a_fault_of_the_engine_is_no_rejection(load):
    with pytest.raises(RuntimeError, match="a bug"):
        outputs_of(load(Engine()), "serving_default", [{"text": "bug"}])


@pytest.mark.parametrize(
    ("text", "options", "sent", "translation"),
    [
        ("<b>ab</b>", {"markup": "html"}, "ab", "<b>AB</b>"),
        ("%s {x} %d", {"markup": "placeholders"}, "<ph_1> <ph_2>", "%s {x} %d"),
        ("ab", {"tag": "2fr"}, "<2fr> ab", "<2FR> AB"),
        (
            "%s ab",
            {"glossary": (("ab", "c"),), "markup": "placeholders"},
            "<ph_1> <term_begin> ab<term_as> c<term_end>",
            "%s <TERM_BEGIN> AB<TERM_AS> C<TERM_END>",
        ),
    ],
)
def test_options_of_a_request_are_those_of_the_translator(load, text, options, sent, translation):
    engine = Engine(placeholders=[2], tags=["2fr"], terms=True)
    (row,) = outputs_of(load(engine), "serving_default", [{"text": text}], options)
    assert row["translation"] == translation and engine.calls[-1][0] == [sent]
    # A sentence with a tag or an item inside needs one.
    expected = {"html": [False], "placeholders": [True]}.get(options.get("markup"), False)
    assert engine.calls[-1][1].get("alignment", False) == expected


RULES = dict.fromkeys(("split_sentences", "copy_symbols", "keep_case"), True)
PARAGRAPH = " Two dogs play.  THE CAT SLEEPS!\n\n12:30\n"


def test_a_text_is_its_sentences_as_the_export_or_the_request_says(load):
    engine = Engine(**RULES)
    rows = [{"text": PARAGRAPH}, {"text": "A."}]
    read = ["Two dogs play.", "The cat sleeps!", "", "A."]
    translated = [" TWO DOGS PLAY.  THE CAT SLEEPS!\n\n12:30\n", "A."]
    for name in ("serving_default", "greedy", "beam"):
        outputs = outputs_of(load(engine), name, rows)
        texts = [row["translation"] for row in outputs]
        assert [text[0] if name == "beam" else text for text in texts] == translated
        assert engine.calls[-1][0] == read
        assert engine.calls[-1][1]["long_input"] == "split"
    outputs_of(load(engine), "greedy", rows, {"split_sentences": False, "keep_case": False})
    assert engine.calls[-1] == (
        ["Two dogs play.  THE CAT SLEEPS!\n\n12:30", "A."],
        {"long_input": "truncate", "beam_size": 1},
    )
    plain = Engine()
    outputs_of(load(plain), "greedy", rows, {"split_sentences": True})
    assert plain.calls[-1][0] == ["Two dogs play.", "THE CAT SLEEPS!", "12:30", "A."]


@pytest.mark.parametrize("known", [None, Languages(directions=(("de", "en"),))])
def test_sentences_end_as_in_the_language_of_the_source(load, known):
    for named, count in (("de-en", 2), (None, 2 if known else 3)):
        engine = Engine(**RULES)
        engine.languages = known
        outputs_of(load(engine, languages=named), "greedy", [{"text": "Am 3. Mai kam er. Ja."}])
        assert len(engine.calls[-1][0]) == count


def test_an_engine_that_splits_no_text_truncates_a_long_sentence(load):
    engine = Engine(**RULES)
    engine.long_inputs = ("truncate",)
    outputs_of(load(engine), "greedy", [{"text": "a. B"}])
    assert engine.calls[-1][1]["long_input"] == "truncate"


def test_a_text_is_one_segment_for_an_alignment_unless_the_request_divides_it(load):
    engine = Engine(**RULES)
    (row,) = outputs_of(load(engine), "align", [{"text": "Two dogs. A cat."}])
    assert engine.calls[-1][0] == ["Two dogs. A cat."] and len(row["alignment"])
    (row,) = outputs_of(
        load(engine), "align", [{"text": "Two dogs. A cat."}], {"split_sentences": True}
    )
    assert engine.calls[-1][0] == ["Two dogs.", "A cat."]
    assert row["translation"] == "TWO DOGS. A CAT." and len(row["alignment"]) == 0


def test_only_texts_with_equal_options_of_sampling_share_a_batch(load):
    model = load(Engine(**RULES))
    rows = [
        {"text": text, **SAMPLING, "top_k": top_k}
        for text, top_k in (("Dogs. Cats.", 3), ("Men.", 5), ("Rats.", 3))
    ]
    work = model.prepare("sample", rows)
    keys = {row["text"]: key for key, row in work.rows}
    assert keys["Dogs."] == keys["Cats."] == keys["Rats."] != keys["Men."]
    texts = [row["translation"] for row in outputs_of(model, "sample", rows)]
    assert texts == ["DOGS. CATS.", "MEN.", "RATS."]


def test_sentences_of_several_languages_keep_theirs(load):
    engine = Engine(**RULES)
    engine.languages = Languages({"de": "<de>", "fr": "<fr>"}, target_prefix="target")
    rows = [
        {"text": "Dogs. Cats.", "target_language": "de"},
        {"text": "Men.", "target_language": "fr"},
        {"text": "Rats.", "target_language": ""},  # A signature has no other way to name none.
    ]
    outputs_of(load(engine), "greedy", rows)
    assert engine.calls[-1][0] == ["Dogs.", "Cats.", "Men.", "Rats."]
    assert engine.calls[-1][1]["target_language"] == ["de", "de", "fr", None]


def test_a_warm_up_runs_the_model_whatever_its_texts_are_made_of(load):
    engine = Engine(**RULES)
    engine.source_tokenizer = FakeTokenizer(detokenize=lambda ids: " ".join(["."] * len(ids)))
    engine.source_tokenizer.tokenize = lambda text, **options: [0] * len(text.split())
    load(engine).warm_up(ServerOptions(model="folder"))
    ((texts, _),) = engine.calls
    assert {*texts[0]} == {".", " "}


REFUSED = [("score", {"split_sentences": True}, "`split_sentences` is an option of translations")]
REFUSED += [("score", {"markup": "html"}, "`markup` is an option of translations")]
REFUSED += [("score", {"glossary": (("a", "b"),)}, "`glossary` is an option of translations")]
REFUSED += [("greedy", {"tag": "2de"}, "must be '2fr'|2de")]
REFUSED += [("greedy", {"glossary": (("a", "b"),)}, "trained with `data.glossary`")]
REFUSED += [("greedy", {"glossary": (("a", " "),)}, "none of them blank")]


@pytest.mark.parametrize(("name", "options", "says"), REFUSED)
def test_options_that_a_model_cannot_take_are_rejections(load, name, options, says):
    row = {"source": "a", "target": "b"} if name == "score" else {"text": "a"}
    with pytest.raises(Rejection, match=says):
        outputs_of(load(Engine(tags=["2fr"])), name, [row], options)
