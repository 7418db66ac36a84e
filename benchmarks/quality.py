"""Quality of models on text: search options, runs side by side, noise, terms.

pip install ".[plots]"
python -m benchmarks.quality beam --model RUN --source FILE --reference FILE --plot sweep.png
python -m benchmarks.quality compare RUN NAME=EXPORT --source FILE --reference FILE
python -m benchmarks.quality curves RUN RUN --plot curves.png
python -m benchmarks.quality noise RUN RUN --source FILE --reference FILE
python -m benchmarks.quality glossary --model RUN --source FILE --reference FILE
"""

import collections
import itertools
import math
import pathlib
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, Literal

import regex

from benchmarks import command_line
from benchmarks.command_line import Panel, Report, log, markdown
from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.data import read_pairs
from keras_transformer.data.noise import Noise, PairNoise
from keras_transformer.decoding.ranking import LENGTH_MARGIN
from keras_transformer.engine.steps.glossary import Glossary, annotate
from keras_transformer.training import RunFolder, evaluate

NOISE = {"in capitals": "upper_case", "Title Case": "title_case"}
NOISE |= {"typos": "typos", "no punctuation": "no_punctuation"}
TERMS = ((1, 1), (2, 1), (4, 1), (1, 3))  # number of terms, words of a term
_WORD = regex.compile(r"\w[\w-]*")


def beam(
    model: str,
    source: str,
    reference: str,
    beam_sizes: Sequence[int] = tuple(range(1, 13)),
    penalties: Sequence[float] = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5),
    plot: str | None = None,
) -> Report:
    """BLEU over beam sizes and length penalties, lengths over the references', longest translation.

    Args:
        model: Run directory or export.
        source: Text to translate.
        reference: Its translation.
        beam_sizes: Beam sizes; 1 is greedy search, which has no penalty.
        penalties: Length penalties.
        plot: PNG file of BLEU over the beam size.
    """
    translator, rows = Translator.load(model), []
    sources, references = read_pairs(source, reference)
    reference_words = sum(len(text.split()) for text in references)
    for beam_size in beam_sizes:
        for penalty in penalties if beam_size > 1 else penalties[:1]:
            search: dict[str, Any] = {"beam_size": beam_size, "length_penalty": penalty}
            texts = [result.text for result in translator.translate(sources, **search)]
            words = [len(text.split()) for text in texts]
            scores = {
                "bleu": round(evaluate(texts, references)["bleu"], 2),
                "length_ratio": round(sum(words) / reference_words, 3),
                "longest": max(words),
            }
            rows.append({**search, **scores})
            log(rows[-1])

    if plot is not None:
        lines = {
            f"penalty {penalty:g}": {
                row["beam_size"]: row["bleu"]
                for row in rows
                if row["length_penalty"] == penalty or row["beam_size"] == 1
            }
            for penalty in penalties
        }
        title = f"BLEU on {pathlib.Path(source).name}"
        command_line.plot(plot, Panel(lines, "beam size", "BLEU", title))
    return Report(rows, markdown(rows))


def compare(
    models: Sequence[str],
    /,
    source: str,
    reference: str,
    edges: Sequence[int] = (8, 11, 14, 18),
    rounds: int = 3,
    plot: str | None = None,
) -> Report:
    """Runs and exports side by side: size, training, words per second, BLEU by source length.

    Each model translates with its own search options, in interleaved rounds. Each group of source
    lengths is a corpus of its own for BLEU.

    Args:
        models: Run directories and exports, each alone or as NAME=PATH.
        source: Text to translate.
        reference: Its translation.
        edges: Largest number of source words of each group except the last.
        rounds: Timed rounds; 0 measures no speed.
        plot: PNG file of BLEU over the number of source words.
    """
    paths = _named(models)
    sources, references = read_pairs(source, reference)
    rows = {name: _training_figures(path) for name, path in paths.items()}
    translators = {name: Translator.load(path) for name, path in paths.items()}
    texts, seconds = {}, collections.defaultdict(list)
    for turn in range(rounds + 1):
        for name, translator in translators.items():
            start = time.perf_counter()
            texts[name] = [result.text for result in translator.translate(sources)]
            if turn:  # The first round also compiles.
                seconds[name].append(time.perf_counter() - start)
    groups, by_length = length_groups(sources, edges), {}
    for name, row in rows.items():
        scores = evaluate(texts[name], references)
        if rounds:
            words = sum(len(text.split()) for text in texts[name])
            row["words/s"] = round(words / statistics.median(seconds[name]))
        row |= {measure: round(scores[measure], 2) for measure in ("bleu", "chrf")}
        by_length[name] = {}
        for group, indices in groups.items():
            hypotheses, wanted = ([side[i] for i in indices] for side in (texts[name], references))
            by_length[name][group] = round(evaluate(hypotheses, wanted)["bleu"], 2)
    if plot is not None:
        command_line.plot(plot, Panel(by_length, "words of the source", "BLEU"))
    table = [{"model": name, **row, **by_length[name]} for name, row in rows.items()]
    figures = {name: {**row, "by_length": by_length[name]} for name, row in rows.items()}
    return Report(figures, markdown(table))


def _named(models):
    """Paths by name, of `NAME=PATH` or `PATH`."""
    pairs = (model.rpartition("=") for model in models)
    return {name or path: path for name, _, path in pairs}


def length_groups(sources: Sequence[str], edges: Sequence[int]) -> dict[str, list[int]]:
    """Places of sources by their number of words: "≤ 8", "9–11", "> 11"; no empty group."""
    groups: dict[str, list[int]] = {}
    limits: list[float] = [0, *edges, math.inf]
    for low, high in itertools.pairwise(limits):
        name = f"> {low}" if high == math.inf else f"{low + 1}–{high}" if low else f"≤ {high}"
        lengths = ((index, len(text.split())) for index, text in enumerate(sources))
        indices = [index for index, n in lengths if low < n <= high]
        groups |= {name: indices} if indices else {}
    return groups


def _training_figures(path):
    """Size and training of a run; None for each figure of an export."""
    if pathlib.Path(path, "export.json").exists():
        return dict.fromkeys(("parameters", "epochs", "minutes", "trained tokens/s"))
    folder = RunFolder.existing(path)
    metrics, rates = folder.metrics(), [row["tokens_per_second"] for row in folder.history()]
    return {
        "parameters": folder.model().count_params(),
        "epochs": metrics["epochs"],
        "minutes": metrics["training_minutes"],
        "trained tokens/s": round(statistics.median(rates)),
    }


def curves(models: Sequence[str], /, plot: str | None = None) -> Report:
    """Best epochs of trainings, finished or not, and a plot of validation loss and BLEU.

    Args:
        models: Run directories.
        plot: PNG file.
    """
    histories = {pathlib.Path(path).name: RunFolder(path).history() for path in models}
    measures = {
        "val_loss": "validation loss, nats per token",
        "val_bleu": "validation BLEU, greedy",
    }
    best = {}
    for name, rows in histories.items():
        row = max(rows, key=lambda row: row.get("val_bleu", -row["val_loss"]))
        values = {measure: round(row[measure], 2) for measure in measures if measure in row}
        best[name] = {"epochs": len(rows), "best": int(row["epoch"]), **values}
    if plot is not None:
        panels = []
        for measure, label in measures.items():
            lines = {
                name: {row["epoch"]: row[measure] for row in rows if measure in row}
                for name, rows in histories.items()
            }
            panels.append(Panel(lines, "epoch", label))
        command_line.plot(plot, *panels)
    return Report(best)


def noise(models: Sequence[str], /, source: str, reference: str) -> Report:
    """Lower-cased BLEU on a text as it is and with each kind of noise.

    Each sentence is changed as `data.noise` changes a training pair, with one seed for all models;
    where that changes both sides, the reference is changed, too. A model that has never read upper
    case may continue up to its limit. So a translation of a changed text has at most twice as many
    tokens as the longest translation of the text as it is, and ten more.

    Args:
        models: Run directories and CTranslate2 exports, each alone or as NAME=PATH.
        source: Text to translate.
        reference: Its translation.
    """
    pairs = list(zip(*read_pairs(source, reference), strict=True))
    texts = {"as it is": pairs}
    for name, kind in NOISE.items():
        shares: dict[str, Any] = {kind: 1.0}
        texts[name] = list(PairNoise(Noise(**shares)).texts(pairs, 1))
    scores: dict = {name: {} for name in texts}
    for model, path in _named(models).items():
        translator, limit = Translator.load(path), None
        for name, changed_pairs in texts.items():
            sources, references = zip(*changed_pairs, strict=True)
            results = translator.translate(list(sources), max_length=limit)
            if limit is None:
                longest = max(len(result.ids) for result in results)
                engine: Any = translator.engine
                limit = min(2 * longest + LENGTH_MARGIN, engine.max_target_length)
            bleu = evaluate([result.text for result in results], list(references))["bleu_lowercase"]
            scores[name][model] = round(bleu, 2)
            log(f"{model}, {name}: {bleu:.2f}")
    return Report(scores, markdown([{"text": name, **row} for name, row in scores.items()]))


def glossary(
    model: str,
    source: str,
    reference: str,
    sentences: int = 500,
    beam_size: int = 8,
    terms: str | None = None,
    by: Literal["constraints", "annotations"] = "constraints",
) -> Report:
    """Share of terms that are written, BLEU and speed, with constraints or annotations.

    The terms of a sentence are words of its reference, sampled, as in Post and Vilar 2018: BLEU
    rises by what they tell of the reference, and falls if the rest of the sentence suffers. With
    `--terms` they are terms of that file with a translation in the reference, as in Dinu et al.
    2019. Each row is searched twice, and only the second search is timed.

    Args:
        model: Run directory or, for annotations, an export.
        source: Text to translate.
        reference: Its translation.
        sentences: Number of sentences, the first of the text.
        beam_size: Beam size.
        terms: Lines of a term, a tab and its translation, as `keras-transformer glossary` writes.
        by: How the model is told; annotations need --terms and a model that was trained with them.
    """
    sources, references = (side[:sentences] for side in read_pairs(source, reference))
    known = None if terms is None else Glossary.load(terms)
    if known is None and by == "annotations":
        raise InputError("`--by annotations` needs `--terms`. Received: none.")
    rows = list(glossary_rows(Translator.load(model), sources, references, beam_size, known, by))
    return Report(rows, markdown(rows))


def glossary_rows(translator, sources, references, beam_size, known=None, by="constraints"):
    """Yields a dict for each number and length of terms; a glossary has no phrases of words."""
    rng, plain = random.Random(1), None

    def row(shown=sources, drawn=None, terms="none"):
        phrases = {} if drawn is None or by == "annotations" else {"phrases": drawn}
        for _ in range(2):
            start = time.perf_counter()
            results = translator.translate(shown, beam_size=beam_size, **phrases)
            seconds = time.perf_counter() - start
        texts = [result.text for result in results]
        shares = {
            "without": drawn and written_share(drawn, plain),
            "with": drawn and written_share(drawn, texts, whole_words=False),
            "with, as whole words": drawn and written_share(drawn, texts),
        }
        bleu = round(evaluate(texts, references)["bleu"], 1)
        speed = {"sentences/s": round(len(texts) / seconds)}
        return texts, {"terms": terms, **shares, "BLEU": bleu, **speed}

    plain, figures = row()
    yield figures
    for count, words in TERMS:
        terms = f"{count} of {words} words"
        if known is None:
            drawn = [sample_terms(text, count, words, rng) for text in references]
            yield row(drawn=drawn, terms=terms)[1]
        elif words == 1:
            matches = map(known.matches, sources, references)
            matches = [sorted(rng.sample(m, min(count, len(m)))) for m in matches]
            drawn = [[match.translation for match in sentence] for sentence in matches]
            annotated = list(map(annotate, sources, matches)) if by == "annotations" else sources
            yield row(annotated, drawn, f"{count} of the glossary")[1]


def sample_terms(reference: str, count: int, words: int, rng: random.Random) -> list[str]:
    """Different terms of consecutive words, fewer where the reference has no more."""
    spans = [match.span() for match in _WORD.finditer(reference)]
    ends = zip(spans, spans[words - 1 :], strict=False)
    terms = sorted({reference[first[0] : last[1]] for first, last in ends})
    return rng.sample(terms, min(count, len(terms)))


def written_share(
    terms: Sequence[Sequence[str]], texts: Sequence[str], whole_words: bool = True
) -> float:
    """Share of the terms that their texts have."""
    pattern = r"(?<!\w){}(?!\w)" if whole_words else "{}"
    written = [
        bool(regex.search(pattern.format(regex.escape(term)), text))
        for sentence, text in zip(terms, texts, strict=True)
        for term in sentence
    ]
    return round(sum(written) / max(len(written), 1), 4)


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(beam, compare, curves, noise, glossary, arguments=arguments)


if __name__ == "__main__":
    main()
