import contextlib
import dataclasses
import functools
import pathlib
import pickle
import shutil
import subprocess

import numpy as np
import pytest
from device_plans import ONE_GRAPH

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.engine import ModelEngine
from keras_transformer.text.languages import Languages
from keras_transformer.text.shortlist import Shortlist

WHO = "a man|a woman|two dogs|three children|the old clerk|a girl".split("|")
DOES = "runs|is sleeping|sits|eats an apple|reads 12 books|läuft schnell".split("|")
WHERE = "in the park|on a bench|near the river|in Köln|behind the house".split("|")
SENTENCES = [f"{who} {does} {where}." for who in WHO for does in DOES for where in WHERE]


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.train_from_texts(SENTENCES, vocabulary_size=53)


@pytest.fixture(scope="session")
def other_tokenizer():
    return Tokenizer.train_from_texts([text.upper() for text in SENTENCES], vocabulary_size=47)


@pytest.fixture(scope="session")
def texts():
    """222 texts of 1 to 40 characters: some are cut at 13 tokens, some are not.

    With the texts that the verification adds, batches of 1, 4 and 32 are all that is compiled.
    """
    return [text[: 1 + i % 40] for i, text in enumerate((SENTENCES * 2)[:222])]


@pytest.fixture(scope="session")
def make_engine(tokenizer):
    """`make_engine(target_tokenizer, seed, dtype, with_xla, **fields)`: random weights.

    Without XLA a process of many tests holds few programs, which TensorFlow never frees.
    """

    def make_engine(target_tokenizer=None, seed=1, dtype="float32", with_xla=False, **fields):
        sizes = {"model_dim": 16, "num_heads": 2, "intermediate_dim": 32}
        sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
        config = TransformerConfig(
            vocabulary_size=tokenizer.vocabulary_size,
            target_vocabulary_size=target_tokenizer and target_tokenizer.vocabulary_size,
            **{**sizes, **fields},
        )
        model = Transformer(config, dtype=dtype)
        # Larger than an initializer's: translations then depend on the source.
        chance = np.random.default_rng(seed)
        for weight in model.trainable_weights:
            weight.assign(0.7 * chance.normal(size=weight.shape))
        limits = {"max_source_length": 13, "max_target_length": 17}
        options = {**limits, **ONE_GRAPH, "with_xla": with_xla}
        return ModelEngine(model, tokenizer, target_tokenizer, **options)

    return make_engine


@pytest.fixture(scope="session")
def engine(make_engine, other_tokenizer):
    """A trained engine with two vocabularies, so that no side is taken for the other."""
    return make_engine(other_tokenizer, normalize_first=True, tie_embeddings="decoder")


@contextlib.contextmanager
def converting_here():
    """LiteRT models are converted in this process: to start another takes most of the time."""
    from keras_transformer.export.litert import file

    class Here(contextlib.nullcontext):
        def start(self):
            self.convert = file.converter()

        def __enter__(self):
            return self

        def send(self, **request):
            self.request = request

        def receive(self):
            return self.convert(**self.request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, "ChildProcess", Here)
        yield


@pytest.fixture
def converted_here():
    """`converting_here` during a test, for tests of texts."""
    with converting_here():
        yield


def as_graph(function, *specs):
    """An ordinary graph in place of a function that XLA compiles."""
    import tensorflow as tf

    return tf.function(function, specs, autograph=False)


@pytest.fixture
def without_xla(monkeypatch):
    """The searches of SavedModels are ordinary graphs, for tests of texts: nothing is compiled."""
    from keras_transformer.export.saved_model import signatures

    monkeypatch.setattr(signatures, "with_xla", as_graph)


@contextlib.contextmanager
def quick_exports():
    """Exports are made in this process, as graphs without XLA, and not verified."""
    from keras_transformer.export import FORMATS, exporter_of
    from keras_transformer.export.saved_model import signatures

    with converting_here(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "with_xla", as_graph)
        for exporter in map(exporter_of, FORMATS):
            patch.setattr(type(exporter), "verify", lambda *_: {"equal": 1, "texts": 1})
        yield


def with_shortlist(engine):
    """An engine with a shortlist, which lacks the last source ids."""
    sides = engine.source_tokenizer, engine.target_tokenizer
    sources, targets = (tokenizer.vocabulary_size for tokenizer in sides)
    shortlist = Shortlist([], [*np.random.default_rng(7).integers(4, targets, (sources - 9, 3))])
    limits = engine.max_source_length, engine.max_target_length
    return ModelEngine(engine.model, *sides, *limits, shortlist=shortlist, **ONE_GRAPH)


@pytest.fixture(scope="session")
def listed_engine(engine):
    return with_shortlist(engine)


@pytest.fixture(scope="session")
def exported_once(made_once):
    """`exported_once(name, export, …)`: the `ExportReport` of what `export(…)` writes, once for all
    processes; its `folder` is a path."""

    def exported_once(name, export, engine, texts, **options):
        def make(folder):
            report = export(engine, folder / "model", texts, **options)
            report = dataclasses.replace(report, folder=pathlib.Path(report.folder))
            (folder / "report").write_bytes(pickle.dumps(report))

        return pickle.loads((made_once(name, make) / "report").read_bytes())

    return exported_once


SEARCH = {"beam_size": 3, "length_penalty": 0.8}
OF_LITERT = {**SEARCH, "n_best": 2, "source_lengths": [13, 7]}


@pytest.fixture(scope="session")
def report(engine, texts, exported_once):
    """The `ExportReport` of `engine`, exported as graphs without XLA and not verified."""
    from keras_transformer.export import export_saved_model

    with quick_exports():
        return exported_once("saved_model", export_saved_model, engine, texts, **SEARCH)


@pytest.fixture(scope="session")
def verified_report(engine, texts, exported_once):
    """The same, compiled with XLA and verified in another process: for slow tests."""
    from keras_transformer.export import export_saved_model

    return exported_once("verified", export_saved_model, engine, texts, **SEARCH)


@pytest.fixture(scope="session")
def litert_report(engine, texts, exported_once):
    """The `ExportReport` of `engine` for LiteRT in float32, not verified."""
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    from keras_transformer.export import export_litert

    with quick_exports():
        return exported_once("litert", export_litert, engine, texts, **OF_LITERT)


@pytest.fixture(scope="session")
def verified_litert_report(engine, texts, exported_once):
    """The same, converted and verified in other processes: for slow tests."""
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    from keras_transformer.export import export_litert

    return exported_once("verified_litert", export_litert, engine, texts, **OF_LITERT)


@pytest.fixture(scope="session")
def ctranslate2_report(engine, texts, exported_once):
    """The `ExportReport` of `engine` for CTranslate2."""
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    from keras_transformer.export import export_ctranslate2

    return exported_once("ctranslate2", export_ctranslate2, engine, texts[:20], **SEARCH)


def check_extra(format):
    """Skips a test where the package of a format is missing."""
    packages = {"litert": "ai_edge_litert", "ctranslate2": "ctranslate2"}
    if format in packages:
        pytest.importorskip(packages[format], reason=f"comes with the extra [{format}]")


@pytest.fixture(scope="session")
def folder_of_lists(listed_engine, texts, exported_once):
    """`folder_of_lists(format)`: the path of `listed_engine`'s export, not verified."""
    fields = {"litert": {"beam_size": 1, "source_lengths": [13]}, "ctranslate2": {"beam_size": 3}}

    def folder_of_lists(format):
        check_extra(format)
        from keras_transformer.export import exporter_of

        options = {"shortlist": True, **fields[format]}
        with quick_exports():
            export = exporter_of(format).export
            return exported_once(f"{format}_list", export, listed_engine, texts, **options).folder

    return folder_of_lists


PLACES = {"source_prefix": "source", "source_suffix": "target", "target_prefix": "target"}
# CTranslate2 has no suffix.
PLACES_OF = {"ctranslate2": {"source_prefix": "source", "target_prefix": "target"}}


@pytest.fixture(scope="session")
def engine_of_languages(engine, texts):
    """`engine_of_languages(format)`: the engine of a model that reads tokens of three languages in
    all places that the format has, and a tag."""
    tokens = {code: f">>{code}<<" for code in ("de", "en", "fr")}
    # As many ids as the model has.
    sides = (texts, 53), ([text.upper() for text in texts], 47)
    tokenizers = [
        Tokenizer.train_from_texts(side, size, languages=tokens.values(), tags=["bt"])
        for side, size in sides
    ]

    @functools.cache
    def engine_of_languages(format=None):
        languages = Languages(tokens, **PLACES_OF.get(format, PLACES))
        return ModelEngine(engine.model, *tokenizers, 13, 17, **ONE_GRAPH, languages=languages)

    return engine_of_languages


@pytest.fixture(scope="session")
def folder_of_languages(engine_of_languages, texts, exported_once):
    """`folder_of_languages(format)`: its export, not verified."""
    fields = {"saved_model": {"signatures": ("beam", "score", "align")}}
    fields["litert"] = {"source_lengths": [13]}

    def folder_of_languages(format):
        check_extra(format)
        from keras_transformer.export import exporter_of

        options = {"beam_size": 2, **fields.get(format, {})}
        with quick_exports():
            export = exporter_of(format).export
            name = f"{format}_of_languages"
            engine = engine_of_languages(format)
            return exported_once(name, export, engine, texts, **options).folder

    return folder_of_languages


@pytest.fixture(scope="session")
def engine_of_one_vocabulary(make_engine):
    return make_engine(normalize_first=True)


@pytest.fixture(scope="session")
def argos_report(engine_of_one_vocabulary, texts, exported_once, made_once):
    """The `ExportReport` of `engine_of_one_vocabulary` for Argos Translate, with a folder that
    splits sentences."""
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    from keras_transformer.export import export_argos

    def make(folder):
        (folder / "stanza" / "de").mkdir(parents=True)
        for name in ("resources.json", "de/model.pt"):
            (folder / "stanza" / name).write_text(name)

    options = {"languages": "en-GB,de", "package_version": "1.10"}
    options |= {"sentence_splitter": made_once("splitter", make) / "stanza"}
    engine = engine_of_one_vocabulary
    return exported_once("argos", export_argos, engine, texts[:20], **options)


@pytest.fixture(scope="session")
def npm(made_once):
    """A folder with LiteRT.js, found as the export finds it or installed."""
    from keras_transformer.extras.web.export import PACKAGES, find_packages

    try:
        return find_packages()[0]
    except InputError:
        pass
    if shutil.which("npm") is None:
        pytest.skip("needs npm: apt-get install npm")

    def install(folder):
        command = ["npm", "install", "--ignore-scripts", "--prefix", folder]
        command += [f"{name}@{series}" for name, series in PACKAGES.items()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"npm could not install LiteRT.js: {done.stderr.strip()[-200:]}")

    return made_once("npm", install)


@pytest.fixture(scope="session")
def web_report(engine, npm, texts, exported_once):
    """The `ExportReport` of `engine` for browsers in float32."""
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    from keras_transformer.export import export_web

    options = {"beam_size": 3, "length_penalty": 0.8, "source_lengths": [13], "npm": npm}
    with converting_here():
        return exported_once("web", export_web, engine, texts[:20], **options)


@pytest.fixture(scope="session")
def exported(report):
    """`report`'s folder, read once: what one test has compiled the others need not."""
    from keras_transformer.export.saved_model.engine import SavedModelEngine

    return SavedModelEngine(report.folder)


@pytest.fixture(scope="session")
def loaded_module(report):
    """`report`'s folder, loaded by TensorFlow's own loader: the signatures need it alive."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (registers the tokenizer's operations)

    return tf.saved_model.load(report.folder)


@pytest.fixture(scope="session")
def signatures(loaded_module):
    """The exported signatures, as TensorFlow's own loader gives them."""
    return loaded_module.signatures


@pytest.fixture(scope="session")
def served(signatures):
    """`served(texts) -> (translations, scores)` through the exported signature."""
    import tensorflow as tf

    def served(texts):
        result = signatures["serving_default"](text=tf.constant(texts, tf.string))
        dtypes = {name: tensor.dtype for name, tensor in result.items()}
        assert dtypes == {"translation": tf.string, "score": tf.float32}
        translations = [text.decode("utf-8") for text in result["translation"].numpy().tolist()]
        return translations, result["score"].numpy().tolist()

    return served


@pytest.fixture(scope="session")
def folder_of(request):
    """`folder_of(format)`: the path of the export in this format."""
    reports = {"saved_model": "report", "litert": "litert_report"}
    return lambda format: request.getfixturevalue(reports.get(format, f"{format}_report")).folder


@pytest.fixture(scope="session")
def engines_of(request, folder_of):
    """`engines_of(format)`: the trained model's engine and the export's."""
    loaded = {}

    def engines_of(format):
        if format not in loaded:
            trained = "engine_of_one_vocabulary" if format == "argos" else "engine"
            if format == "saved_model":
                exported = request.getfixturevalue("exported")
            else:
                exported = Translator.load(folder_of(format)).engine
            loaded[format] = request.getfixturevalue(trained), exported
        return loaded[format]

    return engines_of


@pytest.fixture(scope="session")
def light(tmp_path_factory):
    """An export that is loaded in a second: CTranslate2, random weights."""
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    import numpy as np
    from decoding_oracles import ban_padding_and_bos, varied_transformer
    from live_server import WORDS
    from naive_search import BOS

    from keras_transformer import Tokenizer
    from keras_transformer.engine import ModelEngine
    from keras_transformer.export import export_ctranslate2
    from keras_transformer.extras.ctranslate2.export import CTranslate2Exporter

    model = varied_transformer("post_norm")
    ban_padding_and_bos(model)
    # Its logits have moved: they are centred again, by the axis that bans.
    ids = np.random.default_rng(7).integers(3, 17, size=(2, 23, 19)).astype("int32")
    ids[1, :, 0] = BOS
    logits, table = np.asarray(model((*ids,))), np.array(model.target_embedding.embeddings)
    offsets = -logits.mean(axis=(0, 1)) / 30
    table[:, 0] += np.where(table[:, 0] == 0, offsets, 0)
    model.target_embedding.embeddings.assign(table)
    texts = [f"{one} {two}." for one in WORDS for two in WORDS]
    tokenizer = Tokenizer.train_from_texts(texts, model.config.vocabulary_size)
    engine = ModelEngine(model, tokenizer, max_source_length=31, max_target_length=17)
    folder = tmp_path_factory.mktemp("models") / "light"
    options = {"beam_size": 2, "length_penalty": 1.0}  # Without one a blank text would be best.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CTranslate2Exporter, "verify", lambda *_: {})  # as in tests/export
        export_ctranslate2(engine, folder, **options)
    return folder


@pytest.fixture(scope="session")
def left_behind():
    """Processes of a Ray whose driver was killed, to be gone at the end of all tests.

    Ray's agents try for a minute to report the end of their raylet.
    """
    from live_server import wait_for

    processes = []
    yield processes
    wait_for(lambda: not any(process.is_running() for process in processes), 120)
