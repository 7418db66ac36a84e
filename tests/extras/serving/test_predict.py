"""TensorFlow Serving's API: signatures, options of a request, forms of answers, wrong requests."""

import base64
import json
import math
import tracemalloc

import numpy as np
import pytest
from fakes import FakeTokenizer
from upper_case import Engine, ask, predict

from keras_transformer import Translation
from keras_transformer.base.errors import InputError
from keras_transformer.base.options import FLOAT32
from keras_transformer.decoding.search_options import FILTERS, DecodingOptions
from keras_transformer.text.languages import Languages

pytestmark = pytest.mark.tensorflow

PREDICT = "/v1/models/toy:predict"
SAMPLING = {name: getattr(DecodingOptions, name) for name in FILTERS}
SAMPLING |= {"temperature": 0.5, "top_k": 3, "top_p": 0.25}
NUMBERED = {"translation": "A", "score": 0.1, "log_probability": 0.0}
BEAM = {"translation": ["A", ""], "score": [0.1, -math.inf], "log_probability": [0.0, -math.inf]}
# The weights are float32: 0.1 is not 0.10000000149011612.
ALIGNED = {**NUMBERED, "source_tokens": ["a"], "target_tokens": ["a", "</s>"]}
ALIGNED |= {"alignment": [[0.1], [0.9]]}


@pytest.mark.parametrize(
    ("name", "inputs", "options", "row"),
    [
        ("serving_default", {}, {}, {"translation": "A", "score": 0.1}),
        ("", {}, {}, {"translation": "A", "score": 0.1}),
        ("greedy", {}, {"beam_size": 1}, NUMBERED),
        ("beam", {}, {"n_best": 2}, BEAM),
        ("align", {}, {"alignment": True}, ALIGNED),
        ("sample", SAMPLING, {"sampling": True, **SAMPLING}, NUMBERED),
    ],
)
def test_a_signature_is_an_option_of_the_engine(app_of, name, inputs, options, row):
    engine = Engine()
    assert predict(app_of(engine), name, [{"text": "a", **inputs}]) == [row]
    assert engine.calls == [(["a"], {"long_input": "truncate", **options})]


def test_scores_are_of_pairs(app_of):
    scores = [{"score": -0.5, "log_probability": -1.5}]
    assert predict(app_of(), "score", [{"source": "a", "target": "b"}]) == scores


@pytest.mark.parametrize(
    ("option", "value", "taken"),
    [
        *[("temperature", math.nan, 1e-6), ("temperature", math.inf, FLOAT32 / 2)],
        *[("top_p", math.nan, 1.0), ("top_p", 7.0, 1.0), ("top_p", 0.0, 1e-9), ("top_k", -3, 0)],
    ],
)
def test_sampling_out_of_range_is_the_nearest_value_as_in_a_saved_model(
    app_of, option, value, taken
):
    engine = Engine()
    predict(app_of(engine), "sample", [{"text": "a", **SAMPLING, option: value}])
    ((_, options),) = engine.calls
    settings = {name: options[name] for name in SAMPLING}
    assert settings == {**SAMPLING, option: taken}
    DecodingOptions(sampling=True, **settings)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (
            {"instances": ["ab", {"b64": "Y2Q="}, {"text": "ä\0"}]},
            {"predictions": [{"translation": t, "score": 0.1} for t in ("AB", "CD", "Ä\0")]},
        ),
        *(
            ({"inputs": inputs}, {"outputs": {"translation": ["AB", "CD"], "score": [0.1, 0.1]}})
            for inputs in (["ab", "cd"], {"text": ["ab", {"b64": "Y2Q="}]})
        ),
        # Texts and alignments of one request are padded to one shape.
        (
            {"signature_name": "align", "inputs": ["ab", "longer"], "markup": "none"},
            {
                "outputs": {
                    **{"translation": ["AB", "LONGER"], "score": [0.1] * 2},
                    **{"log_probability": [0.0] * 2, "source_tokens": [["ab"], ["longer"]]},
                    "target_tokens": [["ab", "</s>"], ["longer", "</s>"]],
                    "alignment": [[[0.1], [0.9]] * 2 + [[0.0]] * 8, [[0.1], [0.9]] * 6],
                }
            },
        ),
    ],
)
def test_rows_and_columns_are_answered_as_tensorflow_serving_does(one_app, sent, answer):
    assert ask(one_app(), "POST", PREDICT, json=sent).json() == answer


def test_a_single_output_stands_without_its_name_and_metadata_tells_of_shapes(app_of):
    text = {"dtype": "string", "shape": [None]}
    only_texts = {"inputs": {"text": text}, "outputs": {"translation": text}}
    beam = {
        "inputs": {"text": text},
        "outputs": {"score": {"dtype": "float32", "shape": [None, 5]}},
    }
    signatures = {"serving_default": only_texts, "beam": beam, "other": only_texts}
    app = app_of(Engine(signatures=signatures))
    assert predict(app, "serving_default", ["a", "ä"]) == ["A", "Ä"]
    told = ask(app, "GET", "/v1/models/toy/metadata").json()
    assert told["model_spec"] == {"name": "toy", "signature_name": "", "version": "1"}
    served = told["metadata"]["signature_def"]["signature_def"]
    assert set(served) == {"serving_default", "beam"}  # The program knows no other.
    assert served["beam"]["inputs"]["text"]["dtype"] == "DT_STRING"
    score = served["beam"]["outputs"]["score"]
    sizes = [dim["size"] for dim in score["tensor_shape"]["dim"]]
    assert (score["dtype"], sizes) == ("DT_FLOAT", ["-1", "5"])
    assert served["beam"]["method_name"] == "tensorflow/serving/predict"
    status = {"error_code": "OK", "error_message": ""}
    states = [{"version": "1", "state": "AVAILABLE", "status": status}]
    for path in ("", "/versions/1", "/labels/stable"):
        assert ask(app, "GET", f"/v1/models/toy{path}").json() == {"model_version_status": states}


def test_signatures_are_those_that_the_engine_is_capable_of(app_of):
    engine = Engine("litert", n_best=3)
    engine.capabilities = frozenset({"translate"})
    told = ask(app_of(engine), "GET", "/v1/models/toy/metadata").json()
    served = told["metadata"]["signature_def"]["signature_def"]
    assert set(served) == {"serving_default", "greedy", "beam"}
    assert served["beam"]["outputs"]["score"]["tensor_shape"]["dim"][1]["size"] == "3"


JSON_400 = [
    (b"", "EOF"),
    (b'{"inputs": ["\xff"]}', "unicode"),
    (b'{"inputs": ["a\x00b"]}', "JSON Parse error"),
    (b"[" * 100_000, "recursion"),
    (b"[1]", "not object"),
    (b'{"inputs": ["a"], "instances": ["a"]}', "one of the keys"),
    (b'{"signature_name": "x", "inputs": ["a"]}', "serving_default"),
    (b'{"texts": ["a"]}', "one of the keys"),
    (b'{"inputs": {}}', "object of the inputs: text"),
    (b'{"inputs": {"txt": ["a"]}}', 'serving_default has no input "txt". did you mean `text`?'),
    (b'{"instances": ["a", {"txt": "a"}]}', 'no input "txt". did you mean `text`?'),
    (b'{"instances": [{"text": "a", "top_k": 1}]}', '"top_k". it is an input of: sample'),
    (b'{"signature_name": "score", "instances": [{"source": "a"}]}', "0, target: field required"),
    (b'{"inputs": ["a"], "markups": "html"}', 'no field "markups". did you mean `markup`?'),
    (b'{"inputs": ["a"], "signature": "sample"}', "did you mean `signature_name`?"),
    (b'{"inputs": ["a"], "n_best": 3}', 'no field "n_best". known: signature_name, instances,'),
    (b'{"instances": ["a"], "top_k": 3}', 'no field "top_k". it is an input of: sample.'),
    (b'{"inputs": ["a"], "%b": 3}' % (b"a_" * 400_000), 'no field "a_a_'),
    (b'{"instances": []}', "No values"),
    (b'{"instances": "a"}', "list"),
    (b'{"inputs": [5]}', "string"),
    (b'{"inputs": ["\\ud800"]}', "escape"),
    (b'{"inputs": [{"b64": "?"}]}', "base64"),
    (b'{"inputs": [{"b64": "/w=="}]}', "utf-8"),
    (b'{"signature_name": "score", "inputs": {"source": ["a"], "target": ["a", "b"]}}', "same"),
    (b'{"signature_name": "score", "inputs": ["a"]}', "object of the inputs: source, target"),
    (b'{"instances": ["a"], "markup": ["xml"]}', "markup: input should be 'none', 'place"),
    (b'{"instances": ["a"], "tag": 5}', "tag: input should be a valid string"),
    (b'{"instances": ["a"], "glossary": {"b": 5}}', "glossary, b: input should be a valid"),
    (b'{"instances": ["a", "bad", "c"]}', "More."),
    (b'{"instances": ["graph"]}', "the graph has no such text"),
]
# Options that the model cannot take.
PAIR = {"signature_name": "score", "inputs": {"source": ["a"], "target": ["b"]}}
GREEDY = {"signature_name": "greedy", "inputs": ["a"]}
JSON_400 += [
    (json.dumps({**request, **fields}).encode(), says)
    for request, fields, says in [
        (PAIR, {"split_sentences": True}, "`split_sentences` is an option of translations"),
        (PAIR, {"markup": "html"}, "`markup` is an option of translations"),
        (PAIR, {"glossary": {"a": "b"}}, "`glossary` is an option of translations"),
        (GREEDY, {"tag": "2de"}, "2de"),
        (GREEDY, {"glossary": {"a": "b"}}, "trained with `data.glossary`"),
        (GREEDY, {"glossary": {"a": " "}}, "none of them blank"),
        ({**GREEDY, "signature_name": "sample"}, {}, "object of the inputs: text, "),
    ]
]
for number, says in ((True, "integer"), (2**31, "less"), (1.5, "integer")):
    row = {"text": "a", **SAMPLING, "top_k": number}
    JSON_400 += [(json.dumps({"signature_name": "sample", "instances": [row]}).encode(), says)]


@pytest.mark.parametrize(("body", "says"), JSON_400)
def test_a_malformed_request_names_its_mistake_in_one_line(one_app, body, says):
    answer = ask(one_app(), "POST", PREDICT, content=body)
    assert answer.status_code == 400
    ((name, message),) = answer.json().items()
    assert name == "error" and "\n" not in message
    assert says.lower() in message.lower()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"inputs": ["a"] * 51}, "at most 50 sentences. Received: 51. The server's option `max_s"),
        ({"inputs": ["ä" * 2001]}, "at most 2000 characters"),
        ({"inputs": ["ä" * 2001]}, "`max_text_characters` sets; it has 2001"),
        ({"inputs": [{"b64": base64.b64encode(b"a" * 2001).decode()}]}, "it has 2001"),
        ({"inputs": ["<p>a", "<p>a" * 50], "markup": "html"}, "each block of HTML is one. "),
        ({"inputs": ["<p>a" * 50, "<p>a"], "markup": "html"}, "Received: at least 51"),
        ({"inputs": ["a"], "glossary": {str(n): "b" for n in range(1001)}}, "at most 1000 items"),
        ({"inputs": ["a" * 1990]}, "An answer must have at most 2000 bytes"),
    ],
)
def test_a_request_beyond_a_limit_is_413(one_app, fields, says):
    limits = {"max_sentences": 50, "max_text_characters": 2000, "max_answer_bytes": 2000}
    answer = ask(one_app(**limits), "POST", PREDICT, json=fields)
    assert answer.status_code == 413 and says in answer.json()["error"]


@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_an_answer_may_have_exactly_the_limit_and_is_refused_before_it_is_padded(app_of, form):
    class Square(Engine):
        """Aligns the two texts wide and tall: padded, they have 12 million weights."""

        def translate(self, texts, **options):
            shapes = {"wide": (1, 2000), "tall": (3000, 1), "ab": (2, 2)}
            return [
                Translation(text, 0.0, alignment=np.zeros(shapes[text], "float32"), tokens=empty)
                for text in texts
            ]

    empty = ("",) * 9  # The shortest values need no more bytes than a limit counts.
    text, tokens = ({"dtype": "string", "shape": [None, *shape]} for shape in ([], [None]))
    zeros = {"dtype": "float32", "shape": [None, None, None]}
    align = {"inputs": {"text": text}, "outputs": {"alignment": zeros, "target_tokens": tokens}}
    signatures = {"serving_default": {"inputs": {"text": text}}, "align": align}

    def answer(limit, *texts):
        app = app_of(Square(signatures=signatures), max_answer_bytes=limit, warm_up_tokens=0)
        return ask(app, "POST", PREDICT, json={"signature_name": "align", form: texts})

    whole = answer(10**6, "ab", "ab")
    assert answer(len(whole.content), "ab", "ab").content == whole.content
    assert answer(len(whole.content) - 1, "ab", "ab").status_code == 413
    tracemalloc.start()
    try:
        assert answer(10**6, "wide", "tall").status_code == 413
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "options", "sent", "translation"),
    [
        ("<b>ab</b>", {"markup": "html"}, "ab", "<b>AB</b>"),
        ("%s {x} %d", {"markup": "placeholders"}, "<ph_1> <ph_2>", "%s {x} %d"),
        ("%s <b>", {"markup": "none", "glossary": {}}, "%s <b>", "%S <B>"),
        ("ab", {"tag": "2fr"}, "<2fr> ab", "<2FR> AB"),
        (
            "%s ab",
            {"glossary": {"ab": "c"}, "markup": "placeholders"},
            "<ph_1> <term_begin> ab<term_as> c<term_end>",
            "%s <TERM_BEGIN> AB<TERM_AS> C<TERM_END>",
        ),
    ],
)
def test_options_of_a_request_are_those_of_the_translator(app_of, text, options, sent, translation):
    engine = Engine(placeholders=[2], tags=["2fr"], terms=True)
    (row,) = predict(app_of(engine), "serving_default", [text], **options)
    assert row["translation"] == translation and engine.calls[-1][0] == [sent]
    # A sentence with a tag or an item inside needs one.
    expected = {"html": [False], "placeholders": [True]}.get(options.get("markup"), False)
    assert engine.calls[-1][1].get("alignment", False) == expected


class OfSavedModel(Engine):
    """Aligns the best translation of a beam alone."""

    def request(self, alignment=False, n_best=1, **options):
        if alignment and n_best > 1:
            raise InputError("no alignments of several hypotheses")


@pytest.mark.parametrize(
    ("markup", "default", "beam"),
    [
        ("none", "<B>A {X}</B>", "<B>A {X}</B>"),
        ("placeholders", "<B>A {x}</B>", "<B>A {x}</B>"),
        ("html", "<b>A {x}</b>", "<B>A {X}</B>"),
    ],
)
def test_a_default_markup_is_that_of_the_signatures_which_can_do_it(app_of, markup, default, beam):
    engine, text = OfSavedModel(), "<b>a {x}</b>"
    app = app_of(engine, markup=markup)
    ((_, options),) = app.state.warm_up
    assert ("alignment" in options) == (markup == "html")
    assert predict(app, "serving_default", [text])[0]["translation"] == default
    assert predict(app, "beam", [text])[0]["translation"][0] == beam
    assert predict(app, "serving_default", [text], markup="none")[0]["translation"] == text.upper()
    assert predict(app, "score", [{"source": "a", "target": "b"}])[0]["score"] == -0.5


@pytest.mark.parametrize(
    ("fields", "options", "says"),
    [
        ({"labels": ["no"]}, {}, "toy: expected a model that writes text. Received: a classifier."),
        ({"reads_sources": False}, {}, "toy: the server takes no language models; "),
        ({"manifest": None}, {}, "toy: expected an export. Received: a run folder."),
        ({"capabilities": frozenset()}, {"markup": "html"}, "^`markup=html` needs alignments: .*"),
        ({}, {"warm_up_signatures": "score"}, "must name signatures that take only text.*score"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(app_of, fields, options, says):
    engine = Engine()
    vars(engine).update(fields)
    with pytest.raises(InputError, match=f"{says}[^\n]*$"):
        app_of(engine, **options)


SHAPES = {"shapes": {"rows": [1, 2, 4, 8], "source_lengths": [16, 32, 48]}}


def test_the_warm_up_runs_each_shape_that_is_compiled(app_of):
    app = app_of(Engine("saved_model", **SHAPES), max_batch_size=3, warm_up_tokens=19)
    shapes = {(len(texts), len(texts[0].split())) for texts, _ in app.state.warm_up}
    assert shapes == {(rows, tokens) for rows in (1, 2, 4) for tokens in (15, 19)}
    assert len(app.state.warm_up) == 6
    assert app_of(Engine(**SHAPES), warm_up_tokens=0).state.warm_up == []


@pytest.mark.parametrize("sides", [{}, {"source_prefix": "target"}, {"source_suffix": "source"}])
def test_a_warm_source_has_the_length_of_a_shape_with_the_tokens_of_its_languages(app_of, sides):
    engine = Engine("saved_model", shapes={"rows": [1], "source_lengths": [2, 16, 32]})
    engine.languages = Languages({"de": "<de>", "en": "<en>"}, **sides)
    calls = app_of(engine, max_batch_size=1, warm_up_tokens=19).state.warm_up
    lengths = sorted(len(text.split()) + 1 + len(sides) for (text,), _ in calls)
    assert lengths == [2 + len(sides), 16, 20]  # A text has a token at least.


def test_a_warm_up_runs_the_model_whatever_its_texts_are_made_of(app_of):
    engine = Engine(**RULES)
    engine.source_tokenizer = FakeTokenizer(detokenize=lambda ids: " ".join(["."] * len(ids)))
    engine.source_tokenizer.tokenize = lambda text, **options: [0] * len(text.split())
    ((texts, _),) = app_of(engine).state.warm_up
    assert {*texts[0]} == {".", " "}


RULES = dict.fromkeys(("split_sentences", "copy_symbols", "keep_case"), True)
PARAGRAPH = " Two dogs play.  THE CAT SLEEPS!\n\n12:30\n"
WHOLE = ["Two dogs play.  THE CAT SLEEPS!\n\n12:30"]
SENTENCES = ["The cat sleeps!", "Two dogs play."]
GERMAN = "Am 3. Mai kam er. Ja."
SPLITS = [
    # Rules of the export, fields of the request, signature, texts read, how long ones are treated
    (RULES, {}, "serving_default", SENTENCES, "split"),
    (RULES, {}, "beam", SENTENCES, "split"),
    (RULES, {"split_sentences": False, "keep_case": False}, "greedy", WHOLE, "truncate"),
    ({}, {}, "greedy", WHOLE, "truncate"),
    ({}, {"split_sentences": True}, "greedy", ["12:30", "THE CAT SLEEPS!", SENTENCES[1]], "split"),
    # An alignment is of one segment, unless the request divides it.
    (RULES, {}, "align", WHOLE, "truncate"),
    (RULES, {"split_sentences": True}, "align", SENTENCES, "split"),
]


@pytest.mark.parametrize(("rules", "fields", "name", "read", "long_input"), SPLITS)
def test_a_text_is_its_sentences_as_the_export_or_the_request_says(
    app_of, rules, fields, name, read, long_input
):
    engine = Engine(**rules)
    (row,) = predict(app_of(engine), name, [PARAGRAPH], **fields)
    texts = sorted(text.strip() for texts, _ in engine.calls for text in texts if text.strip())
    assert texts == read
    assert {options["long_input"] for _, options in engine.calls} == {long_input}
    written = row["translation"][0] if name == "beam" else row["translation"]
    assert written.strip() == PARAGRAPH.upper().strip()
    assert read == WHOLE or (written == PARAGRAPH.upper() and not row.get("alignment"))


@pytest.mark.parametrize("known", [None, Languages(directions=(("de", "en"),))])
@pytest.mark.parametrize("named", ["de-en", None])
def test_sentences_end_as_in_the_language_of_the_source(app_of, named, known):
    engine = Engine(**RULES)
    engine.languages = known
    predict(app_of(engine, languages=named), "greedy", [GERMAN])
    assert sum(len(texts) for texts, _ in engine.calls) == (2 if named or known else 3)


def test_an_engine_that_splits_no_text_truncates_a_long_sentence(app_of):
    engine = Engine(**RULES)
    engine.long_inputs = ("truncate",)
    predict(app_of(engine), "greedy", ["a. B"])
    assert engine.calls[-1][1]["long_input"] == "truncate"


def test_only_texts_with_equal_options_of_sampling_share_a_batch(app_of):
    engine = Engine(**RULES)
    rows = [
        {"text": text, **SAMPLING, "top_k": top_k}
        for text, top_k in (("Dogs. Cats.", 3), ("Men.", 5), ("Rats.", 3))
    ]
    texts = [row["translation"] for row in predict(app_of(engine), "sample", rows)]
    assert texts == ["DOGS. CATS.", "MEN.", "RATS."]
    read = {(text, options["top_k"]) for texts, options in engine.calls for text in texts}
    assert read == {("Dogs.", 3), ("Cats.", 3), ("Rats.", 3), ("Men.", 5)}


def test_sentences_of_several_languages_keep_theirs(app_of):
    engine = Engine(**RULES)
    engine.languages = Languages({"de": "<de>", "fr": "<fr>"}, target_prefix="target")
    # A signature has no other way to name no language.
    sent = {"Dogs. Cats.": "de", "Men.": "fr", "Rats.": ""}
    rows = [{"text": text, "target_language": code} for text, code in sent.items()]
    predict(app_of(engine), "greedy", rows)
    read = {}
    for texts, options in engine.calls:
        read |= dict(zip(texts, options["target_language"], strict=True))
    assert read == {"Dogs.": "de", "Cats.": "de", "Men.": "fr", "Rats.": None}
