"""Comparison of translations of one text: significance tests, scores by length, differences."""

import collections
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from keras_transformer.data import read_lines, read_pairs
from keras_transformer.errors import InputError
from keras_transformer.translator import Translator

FilePath = str | os.PathLike

# Upper bounds of groups of sentences, in words of the reference.
_LENGTHS = (10, 20, 30, 40)
_TESTS = {"bs": "p_bootstrap", "ar": "p_randomization"}


def compare_models(
    systems: Sequence[FilePath],
    source: FilePath | None = None,
    reference: FilePath | None = None,
    tokenize: Literal["13a", "none"] = "13a",
    **options: Any,
) -> dict[str, Any]:
    """Compares runs, exports and files with a translation a line on one text; see `compare`.

    Args:
        systems: Their paths, the baseline first. Models are loaded one after the other.
        source: Path of the source text; not needed where all systems are files.
        reference: Path of its translation, aligned; by default `source` has two columns.
        tokenize: Tokenization of BLEU; see `evaluate`.
        **options: Options of `Translator.translate`.

    Raises:
        InputError: A file or a model is not what it must be, or a path is given twice.
    """
    names = [os.fspath(each) for each in systems]
    if len(set(names)) < max(len(names), 2):
        raise InputError(f"A comparison needs two or more different paths. Received: {names}.")
    are_files = [os.path.isfile(each) and not each.endswith(".tflite") for each in names]
    if source is None and (reference is None or not all(are_files)):
        raise InputError("A comparison of models needs a `source`, one of files a `reference`.")
    sources, references = None, read_lines(reference) if reference is not None else []
    if source is not None:
        sources, references = read_pairs(source, reference)
    found = {}
    for name, is_file in zip(names, are_files, strict=True):
        found[name] = read_lines(name) if is_file else _translations(name, sources, options)
        if len(found[name]) != len(references):
            rule = "There must be a translation for each reference."
            received = f"{name} with {len(found[name])} lines, {len(references)} references"
            raise InputError(f"{rule} Received: {received}.")
    return compare(found, references, sources, tokenize)


def _translations(model, sources, options):
    translator = Translator.load(pathlib.Path(model))
    if translator.labels is not None or translator.engine.continues_source:
        raise InputError(f"{model}: only models that translate are compared.")
    return [each.text for each in translator.translate(sources, **options)]


def compare(
    translations: Mapping[str, Sequence[str]],
    references: Sequence[str],
    sources: Sequence[str] | None = None,
    tokenize: Literal["13a", "none"] = "13a",
    listed: int = 5,
) -> dict[str, Any]:
    """Compares translations with those of a baseline, by sacreBLEU's `PairedTest`.

    Args:
        translations: Lists of strings by the system's name; the first is the baseline.
        references: Strings, as many as each list has.
        sources: Strings that are listed beside the largest differences.
        tokenize: Tokenization of BLEU.
        listed: Most sentences that are listed as better, and as worse.

    Returns:
        A dict fit for JSON: `sentences`, `baseline`; `systems`, for each and each of `bleu`,
        `chrf++`, `ter` its `score`, the `mean` and the half width `interval` of its 95% confidence
        interval by bootstrap, and against the baseline `p_bootstrap` (paired bootstrap, 1,000
        samples) and `p_randomization` (approximate randomization, 10,000 trials); `by_length`,
        scores of sentences in groups by words of the reference; `differences`, for each system but
        the baseline the sentences that are `better` and `worse` by most chrF++; `signatures`.

    References: Koehn 2004 (aclanthology.org/W04-3250); Riezler and Maxwell 2005
    (aclanthology.org/W05-0908).
    """
    import sacrebleu
    from sacrebleu.significance import PairedTest

    def metrics():
        bleu = sacrebleu.BLEU(tokenize=tokenize)
        return {"bleu": bleu, "chrf++": sacrebleu.CHRF(word_order=2), "ter": sacrebleu.TER()}

    baseline = next(iter(translations))
    systems: dict[str, dict] = {name: {each: {} for each in metrics()} for name in translations}
    signatures: dict[str, dict] = {name: {} for name in metrics()}
    for test, p_value in _TESTS.items():
        named: list[tuple[str, Sequence[str]]] = list(translations.items())
        signed, found = PairedTest(named, metrics(), [list(references)], test_type=test)()
        results: dict[str, Any] = {key: found[key] for key in found if key != "System"}
        for metric, column in zip(signatures, results, strict=True):
            signatures[metric][p_value.removeprefix("p_")] = str(signed[column])
            for name, result in zip(systems, results[column], strict=True):
                values = {"score": result.score}
                if test == "bs":
                    values |= {"mean": result.mean, "interval": result.ci}
                score = systems[name][metric]
                score |= {key: round(float(value), 2) for key, value in values.items()}
                if name != baseline:
                    score[p_value] = round(result.p_value, 4)
    return {
        "sentences": len(references),
        "baseline": baseline,
        "systems": systems,
        "by_length": _by_length(translations, references, metrics()),
        "differences": _differences(translations, references, sources, metrics(), listed),
        "signatures": signatures,
    }


def _by_length(translations, references, metrics):
    """Scores of groups of sentences, without TER, which depends little on the length."""
    groups = collections.defaultdict(list)
    for place, reference in enumerate(references):
        words = len(reference.split())
        groups[sum(words > most for most in _LENGTHS)].append(place)
    found = []
    for group, places in sorted(groups.items()):
        last = f"-{_LENGTHS[group]}" if group < len(_LENGTHS) else " and more"
        first = (0, *_LENGTHS)[group] + 1
        wanted = [references[place] for place in places]
        row: dict[str, Any] = {"reference_words": f"{first}{last}", "sentences": len(places)}
        for metric in ("bleu", "chrf++"):
            row[metric] = {
                name: round(
                    metrics[metric].corpus_score([texts[i] for i in places], [wanted]).score, 2
                )
                for name, texts in translations.items()
            }
        found.append(row)
    return found


def _differences(translations, references, sources, metrics, listed):
    """Sentences with the largest differences in chrF++ from the baseline."""
    scores = {
        name: [
            metrics["chrf++"].sentence_score(text, [wanted]).score
            for text, wanted in zip(texts, references, strict=True)
        ]
        for name, texts in translations.items()
    }
    (baseline, *others), found = translations, {}
    for name in others:
        pairs = zip(scores[name], scores[baseline], strict=True)
        rows = []
        for place, (after, before) in enumerate(pairs):
            row = {"line": place + 1, "chrf++": round(after - before, 2)}
            row |= {} if sources is None else {"source": sources[place]}
            row["reference"] = references[place]
            rows.append(row | {each: translations[each][place] for each in (baseline, name)})
        rows.sort(key=lambda row: row["chrf++"])
        found[name] = {
            "better": [row for row in rows[: -listed - 1 : -1] if row["chrf++"] > 0],
            "worse": [row for row in rows[:listed] if row["chrf++"] < 0],
        }
    return found
