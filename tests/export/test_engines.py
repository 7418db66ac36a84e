"""Engines of exports: the trained model's results in any batch, and one line for a mistake."""

import concurrent.futures
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from device_plans import ONE_GRAPH
from translations import check_same
from upper_case import outputs_of, translations_of

from keras_transformer import Tokenizer, Translator
from keras_transformer.decoding.search_options import FILTERS, DecodingOptions
from keras_transformer.engine import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.export import export_ctranslate2, exporter_of
from keras_transformer.export.saved_model import engine as saved_model
from keras_transformer.interop.ctranslate2 import engine as ctranslate2
from keras_transformer.interop.importing import import_model
from keras_transformer.serving import ServerOptions
from keras_transformer.serving.model import Model
from keras_transformer.serving.protocol import Rejection
from keras_transformer.text.languages import Languages

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore:.*tokens and were cut")]

TEXTS = ["a man runs.", "two dogs", "", "the old clerk", "a girl", " ", "läuft", "in Köln."]
ODD = ["你好", "\u200b\u2581"]
EXPORTED = {"beam_size": 3, "length_penalty": 0.8}
FIELDS = {
    "litert": ("ids", "tokens", "source_tokens"),
    "ctranslate2": ("ids", "tokens", "source_tokens"),
}


SEARCHES = [
    ("saved_model", {"batch_size": 3}),
    ("saved_model", {"n_best": 3, "batch_size": 100}),
    ("saved_model", {"beam_size": 1}),
    ("saved_model", {"sampling": True, "seed": 5, "temperature": 0.75, "top_k": 7, "top_p": 0.875}),
    ("saved_model", {"sampling": True, "seed": (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)}),
    ("saved_model", {"alignment": True}),
    ("litert", {"batch_size": 2, "threads": 1}),
    ("litert", {"n_best": 2, "batch_size": 3, "threads": 4}),
    ("litert", {"beam_size": 1}),
    ("litert", {"n_best": 2, "alignment": True, "batch_size": 3, "threads": 2}),
    ("litert", {"beam_size": 1, "alignment": True, "threads": 1}),
    ("ctranslate2", {}),
    ("ctranslate2", {"early_stopping": False}),
    ("ctranslate2", {"beam_size": 1, "length_penalty": 0.0}),
    ("ctranslate2", {"n_best": 2, "length_penalty": 1.2}),
    ("ctranslate2", {"max_length_ratio": 0.7, "length_penalty": 0.6}),
    ("ctranslate2", {"n_best": 2, "alignment": True, "batch_size": 1}),
    ("ctranslate2", {"n_best": 2, "alignment": True, "batch_size": 8}),
    ("ctranslate2", {"target_prefixes": ["A", "", "", "ON A", "IN", "", "TWO", "A"]}),
]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("format", "options"), SEARCHES)
def test_it_finds_what_the_trained_model_finds(engines_of, format, options):
    trained, exported = engines_of(format)
    texts = TEXTS if format == "ctranslate2" else TEXTS + ODD
    search = {k: v for k, v in options.items() if k not in ("batch_size", "threads")}
    expected = trained.translate(texts, **{**EXPORTED, **search})
    names = FIELDS.get(format, ("tokens", "source_tokens") if "alignment" in options else ())
    check_same(expected, exported.translate(texts, **options), *names)
    assert exported.translate([]) == []


@pytest.mark.slow
def test_ctranslate2_stops_by_the_rule_of_the_run(tmp_path, unverified):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    # A trained model, as the beams of random weights end alike under both rules.
    data = pathlib.Path(__file__).parents[1] / "data"
    toy = import_model(data / "ctranslate2" / "old_v5_txt")
    limits = {"max_source_length": 64, "max_target_length": 48}
    trained = ModelEngine(toy.model, *toy[1:3], **limits, **ONE_GRAPH)
    export_ctranslate2(trained, tmp_path / "export", beam_size=2)
    exported = Translator.load(tmp_path / "export").engine
    texts = (data / "oracles" / "marian_texts.src").read_text("utf-8").splitlines()
    texts = [text for text in texts if len(text) < 36]
    options = {"beam_size": 2, "length_penalty": 1.0}
    early, late = (
        [
            [row.text for row in engine.translate(texts, early_stopping=is_early, **options)]
            for engine in (trained, exported)
        ]
        for is_early in (True, False)
    )
    assert early[0] == early[1]
    # Without early stopping CTranslate2's rule is another one, which most texts do not notice.
    same = [one == other for one, other in zip(*late, strict=True)]
    assert np.mean(same) > 0.9
    for before, after in zip(early, late, strict=True):
        assert sum(one != other for one, other in zip(before, after, strict=True)) >= 3


@pytest.mark.parametrize("format", ["saved_model", "ctranslate2"])
def test_given_translations_are_scored(engines_of, format):
    trained, exported = engines_of(format)
    targets = TEXTS[::-1]
    if format == "ctranslate2":
        targets = [text.upper() for text in targets]
    another = {"length_penalty": 0.3} if format == "ctranslate2" else {}
    for batch_size, options in ((1, {}), (32, another)):
        expected = trained.score(TEXTS, targets, **{"length_penalty": 0.8, **options})
        received = exported.score(TEXTS, targets, batch_size=batch_size, **options)
        check_same(expected, received, *FIELDS.get(format, ()))
        if format == "ctranslate2":
            for ours, theirs in zip(expected, received, strict=True):
                values = theirs.token_log_probabilities, ours.token_log_probabilities
                np.testing.assert_allclose(*values, atol=1e-4)
    with pytest.raises(InputError, match="a target for each source. Received: 1 sources and 0"):
        exported.score(["a"], [])
    with pytest.raises(InputError, match="`batch_size` must be a positive integer"):
        exported.score(["a"], ["b"], batch_size=0)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("format", ["litert", "ctranslate2"])
def test_a_long_text_is_refused_cut_or_split(engines_of, format):
    trained, exported = engines_of(format)
    long = "a man runs in the park. " * 3
    with pytest.raises(InputError, match="at most 13 tokens"):
        exported.translate([long])
    for text, long_input in ((long, "truncate"), ("a man runs. two dogs sit.", "split")):
        with pytest.warns(UserWarning, match="1 of 1 texts"):
            (received,) = exported.translate([text], long_input=long_input)
        with pytest.warns(UserWarning):
            (expected,) = trained.translate([text], **EXPORTED, long_input=long_input)
        assert received.text == expected.text
    assert len(received.parts) == len(expected.parts) > 1


@pytest.mark.parametrize("format", [None, "saved_model", "litert", "ctranslate2"])
def test_several_threads_get_what_one_gets(engine, engines_of, texts, format):
    exported = engine if format is None else engines_of(format)[1]
    options = {**EXPORTED, "long_input": "truncate"}
    parts = [[text for text in texts[at : at + 8] if len(text) < 13] for at in range(0, 80, 8)]
    expected = [exported.translate(part, **options) for part in parts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        received = pool.map(lambda part: exported.translate(part, **options), parts * 3)
        for one, other in zip(expected * 3, received, strict=True):
            check_same(one, other)


@pytest.mark.parametrize("format", ["saved_model", "litert", "ctranslate2"])
def test_its_folder_is_opened_once(engines_of, folder_of, texts, tmp_path, monkeypatch, format):
    monkeypatch.chdir(tmp_path)
    trained, exported = engines_of(format)
    shutil.copytree(folder_of(format), "copy")
    engine = Translator.load("copy").engine
    shutil.rmtree("copy")
    monkeypatch.chdir("/")
    short_texts = [text for text in texts if len(text) < 13]
    for count in (1, 8, 17):
        expected = exported.translate(short_texts[:count], batch_size=4)
        options = {"threads": 4} if format == "litert" else {}
        check_same(expected, engine.translate(short_texts[:count], batch_size=4, **options))
    assert engine.source_tokenizer == trained.source_tokenizer
    assert engine.target_tokenizer == trained.target_tokenizer


@pytest.mark.parametrize(
    ("format", "module", "name"),
    [("saved_model", saved_model, "load_saved_model"), ("ctranslate2", ctranslate2, "_load")],
)
def test_a_replaced_export_is_refused(folder_of, tmp_path, monkeypatch, format, module, name):
    folder, load = shutil.copytree(folder_of(format), tmp_path / "copy"), getattr(module, name)

    def replaced(*arguments):
        change_manifest(folder, name="another export")
        return load(*arguments)

    monkeypatch.setattr(module, name, replaced)
    with pytest.raises(InputError, match="copy: another export has replaced this one while"):
        Translator.load(folder)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("format", ["saved_model", "litert", "ctranslate2"])
@pytest.mark.usefixtures("unverified", "converted_here", "without_xla")
def test_an_invisible_text_with_a_tag_stays_empty(engine, texts, tmp_path, format):
    # As many ids as the model has.
    tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=53, tags=("bt",))
    limits = {"max_source_length": 13, "max_target_length": 17}
    trained = ModelEngine(engine.model, tokenizer, **limits, **ONE_GRAPH)
    exporter, options = exporter_of(format), {"beam_size": 1}
    if format == "saved_model":
        options["signatures"] = ()
    exporter.export(trained, tmp_path / "export", **options)
    translator = Translator.load(tmp_path / "export")
    invisible = ["\u200b", "\ufeff\u200e", "\u2581", " \u200b", ""]
    translations = translator.translate(["a man", *invisible], tag="bt")
    # White space stays.
    assert [translation.text for translation in translations[1:]] == ["", "", "", " ", ""]
    (expected,) = Translator(trained).translate(["a man"], tag="bt", beam_size=1)
    assert translations[0].score == pytest.approx(expected.score, rel=1e-4) != 0


NAMED = {
    "source_language": ["en", "de", "fr", "de", "en", "fr", "de", "en"],
    "target_language": ["de", "en", "en", "fr", "fr", "de", "en", "de"],
}


OWN = {"source_prefix": "target"}
M2M = {"source_prefix": "source", "target_prefix": "target"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "places"),
    [
        ("saved_model", OWN),
        ("ctranslate2", OWN),
        ("saved_model", M2M),
        ("ctranslate2", M2M),
        ("litert", M2M),
    ],
)
def test_texts_of_several_directions_are_translated_together(
    engine, texts, tmp_path, request, monkeypatch, converted_here, without_xla, format, places
):
    # SavedModels of languages are verified, and compiled, in saved_model/test_languages.py.
    if places is OWN or format == "saved_model":
        request.getfixturevalue("unverified")
    tokens = {code: f">>{code}<<" for code in ("de", "en", "fr")}
    # As many ids as the model has.
    symbols = {"languages": tokens.values(), "tags": ["bt"]}
    tokenizer = Tokenizer.train_from_texts(texts, vocabulary_size=53, **symbols)
    limits = {"max_source_length": 13, "max_target_length": 17}
    languages = Languages(tokens, **places)
    trained = ModelEngine(engine.model, tokenizer, **limits, **ONE_GRAPH, languages=languages)
    # It is verified with texts of all directions.
    fields = {"saved_model": {"signatures": ("beam", "score", "align")}}
    fields["litert"] = {"source_lengths": [13]}
    options = {"beam_size": 2, **fields.get(format, {})}
    exporter_of(format).export(trained, tmp_path / "export", **options)
    translator, options = Translator.load(tmp_path / "export"), {"beam_size": 2}
    assert translator.directions == list(languages.directions)
    assert translator.engine.languages == languages
    translator_of_run = Translator(trained)
    expected = translator_of_run.translate(TEXTS, **options, **NAMED)
    check_same(expected, translator.translate(TEXTS, **NAMED), *FIELDS.get(format, ()))
    assert len({translation.text for translation in expected}) > 2
    for method, arguments in (("score", [TEXTS, TEXTS[::-1]]), ("translate", [TEXTS])):
        if method not in translator.engine.capabilities:
            continue
        also = {} if method == "score" else {"alignment": True, **options}
        ours = getattr(translator_of_run, method)(*arguments, **also, **NAMED)
        theirs = getattr(translator, method)(*arguments, **also, **NAMED)
        check_same(ours, theirs)
        if also:
            for one, other in zip(ours, theirs, strict=True):
                assert one.source_tokens == other.source_tokens
    # The language is in the text, as in training.
    if "target_prefix" not in places:
        (typed,) = translator.translate([f">>de<< {TEXTS[0]}"])
        assert typed.text == expected[0].text
        (typed,) = translator.translate([f">>de<< {TEXTS[0]}"], tag="bt")
        own = translator_of_run.translate(TEXTS[:1], tag="bt", target_language="de", **options)
        assert typed.text == own[0].text != expected[0].text
    monkeypatch.setattr(Translator, "load", lambda path, threads: translator)
    model = Model("export", 2)
    inputs = {name: values[0] for name, values in NAMED.items() if name in languages.inputs}
    (row,) = outputs_of(model, "serving_default", [{"text": TEXTS[0], **inputs}])
    assert row["translation"] == expected[0].text
    # Other programs may also name a language by other codes of it.
    if format == "saved_model":
        others = {"target_language": "DE_at", "source_language": "en-US"}
        inputs |= {name: others[name] for name in inputs}
        (row,) = outputs_of(model, "serving_default", [{"text": TEXTS[0], **inputs}])
        assert row["translation"] == expected[0].text
    if format == "saved_model" and places is M2M:  # It has both inputs.
        tf = pytest.importorskip("tensorflow", reason="comes with the extra [test]")
        graph = tf.saved_model.load(tmp_path / "export").signatures["serving_default"]
        inputs = {name: tf.constant([value]) for name, value in inputs.items()}
        (typed,) = graph(text=tf.constant([TEXTS[0]]), **inputs)["translation"].numpy()
        assert typed.decode() == expected[0].text
    warm_up = ServerOptions(model="export", max_batch_size=1, warm_up_tokens=3)
    assert model.warm_up(warm_up) == 1
    with pytest.raises(InputError, match="`target_language` must be one of .* 'it'"):
        translator.translate(TEXTS, target_language="it")


SOURCES = (("en-GB", "de"), ("en-US", "de"), ("fr", "de"))
OF_MARIAN = {"position_layout": "halves", "position_frequencies": "marian"}
OF_MARIAN["layer_norm_epsilon"] = 1e-6
OPTIONS = {
    "saved_model": {"signatures": ("beam",)},
    "litert": {"source_lengths": [13]},
    "web": {"source_lengths": [13]},
    "argos": {"languages": "en-US,de"},
    "marian": {"length_normalization": "marian"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "format", ["saved_model", "litert", "web", "ctranslate2", "hugging_face", "marian", "argos"]
)
def test_every_format_has_all_directions_of_several_sources(
    make_engine, tmp_path, request, unverified, converted_here, without_xla, format
):
    trained = make_engine(**(OF_MARIAN if format == "marian" else {}))
    trained.languages = Languages(directions=SOURCES)
    npm = {"npm": request.getfixturevalue("npm")} if format == "web" else {}
    options = {"beam_size": 2} if format != "argos" else {}
    options |= OPTIONS.get(format, {}) | npm
    folder = tmp_path / "export"
    manifest = exporter_of(format).export(trained, folder, **options).manifest
    written = json.loads((folder / "export.json").read_text("utf-8"))["language_tokens"]
    assert Languages.from_dict(written).directions == SOURCES
    assert manifest["languages"] == (("en-US", "de") if format == "argos" else None)
    if format == "hugging_face":
        card = (folder / "README.md").read_text("utf-8")
        assert "language:\n- en-GB\n- en-US\n- fr\n- de\n---\n" in card
        assert "from British English, American English and French to German\n" in card
    if format in ("saved_model", "litert", "ctranslate2"):
        translator = Translator.load(folder)
        assert translator.directions == [*SOURCES]
        named = {"source_language": ["en-US", "fr"], "target_language": "de"}
        expected = trained.translate(TEXTS[:2], beam_size=2)
        check_same(expected, translator.translate(TEXTS[:2], **named), *FIELDS.get(format, ()))
        with pytest.raises(InputError, match="`source_language` must be one of en-GB, en-US, fr"):
            translator.translate(TEXTS[:2], source_language="es")


@pytest.mark.parametrize("format", ["ctranslate2", "argos"])
def test_the_one_direction_of_a_run_is_that_of_its_export(
    make_engine, tmp_path, unverified, format
):
    trained = make_engine()
    trained.languages = Languages(directions=(("en", "eo"),))
    manifest = exporter_of(format).export(trained, tmp_path / "export").manifest
    assert manifest["languages"] == ("en", "eo")


def test_an_export_names_no_direction_that_the_model_lacks(make_engine, tmp_path):
    trained = make_engine()
    for directions, named in (([("en", "eo")], "fr-it"), ([(None, "de"), (None, "eo")], "en-it")):
        trained.languages = Languages(directions=directions)
        with pytest.raises(InputError, match=f"direction of the model: .*. Received: {named}.$"):
            exporter_of("hugging_face").export(trained, tmp_path / "export", languages=named)
    assert not any(tmp_path.iterdir())


WITHOUT_KERAS = """
import sys
# With None in a module's place its import ends in ImportError.
sys.modules.update(dict.fromkeys(["keras", "tensorflow", "tensorflow_text"]))
sys.argv = ["keras-transformer", "translate", "--model", sys.argv[1]]
from keras_transformer.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("format", "name"), [("litert", "model.tflite"), ("ctranslate2", ".")])
def test_the_command_translates_without_tensorflow_or_keras(engines_of, folder_of, format, name):
    command = [sys.executable, "-c", WITHOUT_KERAS, str(folder_of(format) / name)]
    stdin = "".join(f"{text}\n" for text in TEXTS)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    expected = [t.text for t in Translator(engines_of(format)[0]).translate(TEXTS, **EXPORTED)]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected)


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("saved_model", {"early_stopping": False}, "`early_stopping` is fixed at True"),
        ("saved_model", {"n_best": 4}, "`n_best` must be at most `beam_size`"),
        ("saved_model", {"n_best": 2, "beam_size": 1}, "`n_best` must be 1 of greedy search"),
        ("saved_model", {"n_best": 2, "sampling": True}, "`n_best` must be 1 of samples"),
        ("saved_model", {"n_best": 2, "alignment": True}, "`n_best` must be 1 with `alignment`"),
        ("saved_model", {"beam_size": 1, "alignment": True}, "need beam search.*beam_size=1"),
        ("saved_model", {"sampling": True, "alignment": True}, "need beam search.*sampling=True"),
        ("saved_model", {"sampling": True, "seed": (1, 2)}, "one `seed`, or one for each text"),
        ("saved_model", {"batch_size": 0}, "`batch_size` must be a positive integer"),
        ("litert", {"n_best": 3}, "at most 2 in this search"),
        ("litert", {"n_best": 2, "beam_size": 1}, "at most 1 in this search"),
        ("litert", {"threads": 0}, "`threads` must be a positive integer"),
        ("litert", {"bean_size": 3}, "Did you mean `beam_size`?"),
        ("litert", {"long_input": "drop"}, "`long_input` must be one of"),
        ("ctranslate2", {"max_length": 99}, "`max_length` must be at most 17"),
        ("ctranslate2", {"n_best": 4}, "`n_best` must be at most `beam_size`"),
        ("ctranslate2", {"batch_size": 0}, "`batch_size` must be a positive integer"),
    ],
)
def test_an_option_that_it_does_not_have_is_one_line(engines_of, format, options, message):
    with pytest.raises(InputError, match=message):
        engines_of(format)[1].translate(["a man"], **options)


@pytest.mark.parametrize("options", [{"sampling": True}, {"beam_size": 1}])
def test_a_saved_model_places_no_html_tags_without_an_alignment(engines_of, monkeypatch, options):
    translator = Translator(engines_of("saved_model")[1])
    rule = "`markup=html`. need beam search in a SavedModel. Received: "
    with pytest.raises(InputError, match=rule):
        translator.translate(["<b>a</b> man"], markup="html", **options)
    monkeypatch.setattr(Translator, "load", lambda path, threads: translator)
    server, row = Model("any", 1), {"text": "<b>a</b> man"}
    row |= {"seed": 3, **{name: getattr(DecodingOptions, name) for name in FILTERS}}
    name = "sample" if "sampling" in options else "greedy"
    with pytest.raises(Rejection, match=rule) as rejected:
        translations_of(server, name, [row], {"markup": "html"})
    assert rejected.value.status == 400


@pytest.mark.parametrize("format", ["saved_model", "litert", "ctranslate2"])
@pytest.mark.parametrize("received", ["a man", ["a man", None], ["a man", "\ud800"]])
def test_what_is_no_list_of_strings_is_refused(engines_of, format, received):
    with pytest.raises(InputError, match="^(Text 2: A text|(Text 2: )?`texts`) must be .* Rec"):
        engines_of(format)[1].translate(received)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_middle(path):
    """What LiteRT and CTranslate2 would load without a complaint, or crash."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_manifest(folder, **fields):
    manifest = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**manifest, **fields}))


def rename_operation(folder):
    path = folder / "saved_model.pb"
    path.write_bytes(path.read_bytes().replace(b"SentencepieceOp", b"SentencepieceXX"))
    files = json.loads((folder / "export.json").read_text())["files"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    change_manifest(folder, files={**files, path.name: digest})


OTHER = "is not the file that was exported"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n"
DAMAGES = [
    ("saved_model", lambda folder: (folder / "export.json").unlink(), "without export.json"),
    ("saved_model", lambda folder: cut(folder / "export.json"), "a JSON object"),
    ("saved_model", lambda folder: (folder / "export.json").write_text("[]"), "a JSON object"),
    ("saved_model", lambda folder: change_manifest(folder, beam_size="4"), '"beam_size" or with'),
    ("saved_model", lambda folder: cut(folder / "saved_model.pb"), f"saved_model.pb {OTHER}"),
    ("saved_model", lambda folder: change_middle(next(folder.glob("variables/*.data*"))), OTHER),
    ("saved_model", lambda folder: shutil.rmtree(folder / "variables"), "data.* is missing"),
    ("saved_model", rename_operation, "Received: unknown operations: SentencepieceXX"),
    ("litert", lambda folder: change_middle(folder / "model.tflite"), OTHER),
    ("litert", lambda folder: (folder / "tokenizer.model").unlink(), "tokenizer.model"),
    ("litert", lambda folder: change_middle(folder / "tokenizer.model"), f"model {OTHER}"),
    ("litert", lambda folder: (folder / "model.tflite").write_text(POINTER), "a Git LFS pointer"),
    ("litert", lambda folder: change_manifest(folder, files={}), OTHER),
    ("litert", lambda folder: change_manifest(folder, files=5), '"files" or with another type'),
    (
        "litert",
        lambda folder: change_manifest(folder, format_version=1),
        "format_version=1 inst",
    ),
    # Version 0.3 wrote SavedModels of other signatures with this number.
    (
        "saved_model",
        lambda folder: change_manifest(folder, format_version=2),
        "format_version=2 inst",
    ),
    ("ctranslate2", lambda folder: change_middle(folder / "model.bin"), f"model.bin {OTHER}"),
    ("ctranslate2", lambda folder: (folder / "export.json").unlink(), "a CTranslate2 model that"),
]


@pytest.mark.parametrize(("format", "damage", "message"), DAMAGES)
def test_a_damaged_folder_is_named_in_one_line(folder_of, tmp_path, format, damage, message):
    folder = shutil.copytree(folder_of(format), tmp_path / "copy")
    damage(folder)
    with pytest.raises(InputError, match=message) as error:
        Translator.load(folder)
    assert str(error.value).startswith(str(folder)) and "\n" not in str(error.value)
