"""A model on a file: saved translations, labels, perplexity, and lines that are too long."""

import math
import os
import time

import numpy as np
import pytest
from small_corpus import PAIRS, write_corpus

from keras_transformer import Tokenizer, Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import locked_folder
from keras_transformer.base.ids import BOS_ID
from keras_transformer.data import read_lines
from keras_transformer.engine import Engine, ModelEngine, evaluation
from keras_transformer.engine.evaluation import evaluate_model, labelled_texts
from keras_transformer.engine.inputs import ids_and_texts
from keras_transformer.models import LanguageModel
from keras_transformer.models.config import LanguageModelConfig
from keras_transformer.text import Labels


@pytest.fixture
def files(tmp_path):
    """The source and target file of a small corpus."""
    corpus = write_corpus(tmp_path / "corpus")
    return corpus / "train.en", corpus / "train.de"


@pytest.fixture
def echo(monkeypatch):
    """The engine that is loaded, which knows the translations of the corpus."""

    class Echo(Engine):
        def translate(self, texts, **options):
            assert options == {"beam_size": 3, "long_input": "split"}
            known = dict(PAIRS)
            return [Translation(known[text], 0.0) for text in texts]

    echo = Echo()
    monkeypatch.setattr(Translator, "load", lambda path, **options: Translator(echo))
    return echo


@pytest.mark.usefixtures("echo")
def test_translations_are_saved_and_scored(files, tmp_path):
    saved = tmp_path / "out.de"
    for save in (os.devnull, saved):
        assert evaluate_model("any", *files, save=save, beam_size=3)["bleu"] == 100.0
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "out.de"}
    assert read_lines(saved) == [target for _, target in PAIRS]


@pytest.mark.parametrize("options", [{}, {"long_input": "refuse"}, {"long_input": "truncate"}])
def test_long_sources_are_split_unless_the_caller_says_otherwise(files, echo, monkeypatch, options):
    def translate(texts, **received):
        assert received == {"long_input": "split", **options}
        return [Translation(text, 0.0) for text in texts]

    monkeypatch.setattr(echo, "translate", translate)
    assert evaluate_model("any", files[0], files[0], **options)["bleu"] == 100.0


@pytest.fixture
def link(tmp_path):
    """A symbolic link to `out.de`."""
    (tmp_path / "link").symlink_to(tmp_path / "out.de")
    return tmp_path / "link"


def test_translations_are_not_saved_to_a_file_that_is_read(files, link, tmp_path):
    saved = tmp_path / "out.de"
    for name, texts in ("source", [saved]), ("reference", [files[0], saved]), ("glossary", files):
        with pytest.raises(InputError, match=f"another file than `{name}`, .*: {link}"):
            evaluate_model("no model", *texts, save=link, glossary=str(saved))


def test_translations_are_not_saved_to_a_file_that_another_process_writes(files, link, tmp_path):
    saved = tmp_path / "out.de"
    with locked_folder(link), pytest.raises(InputError) as caught:
        evaluate_model("no model", *files, save=saved)
    said = f"{saved}: another process writes to this file. Wait until it has ended, or give"
    assert str(caught.value) == f"{said} another file."


UNUSED = [({"tokenize": "13a"}, "`tokenize` has no effect on perplexity")]
UNUSED += [({"beam_size": 3}, "`beam_size` has no effect on perplexity")]
UNUSED += [({"tag": "2de"}, "`tag` needs a model trained with tags")]


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize(("options", "message"), UNUSED)
def test_an_option_without_effect_on_perplexity_is_refused(files, options, message):
    with pytest.raises(InputError, match=message):
        evaluate_model("any", *files, perplexity=True, **options)


def test_a_tokenizer_has_no_effect_on_labels(files, echo):
    echo.labels = read_lines(files[1])
    with pytest.raises(InputError, match="`tokenize` has no effect on labels"):
        evaluate_model("any", *files, tokenize="13a")


def test_an_unknown_label_is_named_by_its_file_and_line(tmp_path):
    labels, texts = Labels(["ham", "spam"]), ["a", "b", "c"]
    table, source, target = (tmp_path / name for name in ("table", "source", "target"))
    for names in (["spam", "ham", "spam"], ["spam", "ham", "eggs"]):
        rows = zip(names, texts, strict=True)
        table.write_text("".join(f"{name}\t{text}\n" for name, text in rows))
        source.write_text("".join(f"{text}\n" for text in texts))
        target.write_text("".join(f"{name}\n" for name in names))
        for files in ((table,), (source, target)):
            if "eggs" not in names:
                assert labelled_texts(labels, *files) == (texts, names)
                continue
            with pytest.raises(InputError, match=f"^{files[-1]}, line 3: .* Received: 'eggs'"):
                labelled_texts(labels, *files)


@pytest.mark.parametrize("perplexity", [False, True])
@pytest.mark.parametrize("long_side", ["en", "de"])
@pytest.mark.parametrize("manifest", [None, {}])
def test_a_text_that_is_too_long_is_named_by_its_own_file(
    tmp_path, monkeypatch, perplexity, long_side, manifest
):
    tokenizer = Tokenizer.train_from_texts([source for source, _ in PAIRS], 120)

    class Scorer(Engine):
        """Has the limits of a model, checks them in the model's order and translates nothing."""

        capabilities = frozenset({"translate", "score"})
        target_tokenizer, max_target_length = tokenizer, 7

        def translate(self, texts, **options):
            self.score(texts, [""] * len(texts))
            return [Translation(text, 0.0) for text in texts]

        def score(self, sources, targets, **options):
            for name, texts in (("sources", sources), ("targets", targets)):
                ids_and_texts(name, texts, tokenizer, 7)
            return [Translation(text, -1.0) for text in targets]

    Scorer.manifest = manifest
    monkeypatch.setattr(Translator, "load", lambda path, **options: Translator(Scorer()))
    lines = {"en": ["A.", "A."], "de": ["B.", "B."]}
    lines[long_side][1] = "a " * 9
    for side, texts in lines.items():
        (tmp_path / side).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    files, too_long = (tmp_path / "en", tmp_path / "de"), tmp_path / long_side
    if long_side == "de" and not perplexity:  # The references of translations may be longer.
        assert evaluate_model("any", *files)["sentences"] == 2
        return
    with pytest.raises(InputError, match=f"^{too_long}, line 2: .* must have at most 7 tokens"):
        evaluate_model("any", *files, perplexity=perplexity)


WINDOW, OVERLAP = 7, 3


def log_probability(model, ids):
    """Sums the log-probabilities of a text's tokens, each after the start of its window."""
    total = 0.0
    for index, token in enumerate(ids):
        # The first of the windows 0 … 7, 4 … 11, 8 … 15, … that it is in.
        start = max(0, math.ceil((index + 1 - WINDOW) / (WINDOW - OVERLAP))) * (WINDOW - OVERLAP)
        assert index - start >= min(index, OVERLAP)
        read = np.array([[BOS_ID, *ids[start:index]]])
        logits = np.asarray(model(read), "float64")[0, -1]
        total += logits[token] - np.log(np.exp(logits).sum())
    return total


def test_joining_windows_takes_time_in_proportion_to_their_number():
    """Of 8 tokens each, whose first half is only context after the first window."""
    windows = [
        Translation("", 0.0, token_log_probabilities=tuple(-1.0 * number for _ in range(8)))
        for number in range(20_000)
    ]
    started = time.process_time()
    joined = evaluation._of_windows("a text", windows, 4)
    assert time.process_time() - started < 2  # Copying the tokens so far takes half a minute.
    by_token = np.repeat(-np.arange(20_000.0), 4)
    assert joined.token_log_probabilities == (0.0,) * 4 + tuple(by_token.tolist())
    assert joined.score == joined.log_probability == by_token.sum()


@pytest.mark.tensorflow
def test_long_lines_are_scored_in_windows_that_overlap(tmp_path, monkeypatch, randomize):
    tokenizer = Tokenizer.train_from_texts([source for source, _ in PAIRS], 120)
    sizes = dict(vocabulary_size=120, model_dim=14, num_heads=2, intermediate_dim=11)
    model = randomize(LanguageModel(LanguageModelConfig(**sizes, num_decoder_layers=1)))
    engine = ModelEngine(model, tokenizer, max_source_length=5, max_target_length=WINDOW)
    monkeypatch.setattr(Translator, "load", lambda path, **options: Translator(engine))
    lines = ["A.", "", "Two dogs play in the snow and #% the water."]
    for long, count in ((1, 6), (2, 7)):
        lines[1] = " ".join("a" * count)  # and EOS: a window, and one token more
        file = tmp_path / "text.en"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        ids = tokenizer.tokenize(lines, add_eos=True)
        assert len(ids[1]) == count + 1 and len(ids[2]) > 2 * WINDOW
        said = f"{long} of 3 texts are longer than 7 tokens and were scored in windows"
        with pytest.warns(UserWarning, match=said):
            scores = evaluate_model("any", reference=file)
        nats = -sum(log_probability(model, row) for row in ids)
        tokens, words = sum(map(len, ids)), sum(len(line.split()) for line in lines)
        for unit, count in (("word", words + 3), ("token", tokens)):
            perplexity = pytest.approx(math.exp(nats / count), rel=1e-3)
            assert scores.pop(f"perplexity_per_{unit}") == perplexity
        counts = {"sentences": 3, "words": words + 3, "tokens": tokens}
        counts |= {"sentences_in_windows": long, "unknown_word_share": round(1 / words, 4)}
        assert scores == counts
