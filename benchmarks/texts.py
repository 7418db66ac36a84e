"""What becomes of texts that are more than a sentence: quality, time and memory.

python -m benchmarks.texts paragraphs --model RUN --source FILE [--reference FILE]
python -m benchmarks.texts capitals --model RUN --source FILE [--reference FILE]
python -m benchmarks.texts terms --model RUN --source FILE
python -m benchmarks.texts speed --model RUN --source FILE [--bergamot PYTHON --student DIR]
"""

import collections
import functools
import html
import itertools
import pathlib
import unittest.mock
from collections.abc import Callable, Sequence

from benchmarks import command_line
from benchmarks.bergamot import Bergamot
from benchmarks.command_line import Report, log, markdown
from benchmarks.measure import in_turns
from keras_transformer import Translator
from keras_transformer.data import read_lines, read_pairs
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.engine.steps.glossary import Glossary
from keras_transformer.training import evaluate

# English nouns and Portuguese words for them, of which a model may prefer others.
TERMS = """
dog cachorro, horse cavalo, bicycle bicicleta, guitar viola, street avenida, beach praia,
ball bola de jogo, boat embarcação, building edifício, bus autocarro, car automóvel, girl moça,
boy rapaz, lake lagoa, shirt camiseta, hat boné, jacket casaco, tree árvore, wall parede,
water água, snow neve, sidewalk calçada, soccer futebol de campo, bench banco de jardim,
camera máquina fotográfica, train comboio, woman senhora, man sujeito, child criança, cat gato,
market mercado municipal, restaurant casa de pasto, store loja, truck caminhão,
skateboard prancha de skate, motorcycle mota, bridge ponte, fence vedação, crowd multidão,
stage palco
"""
_MAX_OF_TERM = 4  # sentences


def paragraphs(model: str, source: str, reference: str | None = None, size: int = 5) -> Report:
    """Lines, the same lines joined to paragraphs, and the paragraphs as one segment each.

    Args:
        model: Run directory or export.
        source: Text to translate.
        reference: Its translation; by default the model's own, line by line.
        size: Lines of a paragraph.
    """
    translator = Translator.load(model)
    sources, references = read_pairs(source, reference or source)
    starts = range(0, len(sources), size)

    def joined(lines):
        return [" ".join(lines[start : start + size]) for start in starts]

    lines = [line.text for line in translator.translate(sources, split_sentences=False)]
    references = references if reference else lines
    rows = [_paragraph_row("lines, joined", joined(lines), joined(references))]
    for way, splits in ("sentence by sentence", True), ("one segment", False):
        translations = translator.translate(
            joined(sources), split_sentences=splits, long_input="split"
        )
        texts = [translation.text for translation in translations]
        equal = sum(
            len(
                collections.Counter(
                    part.text.strip() for part in translation.parts or [translation]
                )
                & collections.Counter(lines[start : start + size])
            )
            for translation, start in zip(translations, starts, strict=True)
        )
        row = _paragraph_row(way, texts, joined(references))
        rows.append({**row, "equal lines": f"{equal / len(lines):.1%}"})
        log(rows[-1])
    return Report(rows, markdown(rows))


def _paragraph_row(way, texts, references):
    scores = evaluate(texts, references)
    words = sum(len(text.split()) for text in texts) / sum(len(text.split()) for text in references)
    figures = {"BLEU": f"{scores['bleu']:.2f}", "chrF": f"{scores['chrf']:.2f}"}
    return {"texts": way, **figures, "words of the references'": f"{words:.1%}", "equal lines": ""}


def capitals(model: str, source: str, reference: str | None = None, count: int = 200) -> Report:
    """chrF of sentences in capitals, read as they are and in their usual case.

    Args:
        model: Run directory or export.
        source: Text to translate.
        reference: Its translation; by default the model's own, of the text as it is.
        count: Number of lines.
    """
    translator = Translator.load(model)
    sources, references = read_pairs(source, reference or source)
    sources, references = sources[:count], references[:count]
    if reference is None:
        references = [line.text for line in translator.translate(sources, split_sentences=False)]
    rows = []
    for keeps in (False, True):
        texts = [line.upper() for line in sources]
        translations = translator.translate(texts, split_sentences=False, keep_case=keeps)
        outputs = [translation.text.upper() for translation in translations]
        scores = evaluate(outputs, [line.upper() for line in references])
        rows.append({"keep_case": str(keeps).lower(), "chrF": f"{scores['chrf']:.2f}"})
        rows[-1]["BLEU"] = f"{scores['bleu']:.2f}"
        log(rows[-1])
    return Report(rows, markdown(rows))


def terms(model: str, source: str, count: int = 100) -> Report:
    """Translations with a term that the search forces, by beam size.

    chrF compares them with the greedy translations without terms. Beams of 1, 2, 4 and 8 hypotheses
    are searched as they are; the last row is `beam_size` 1 as `DecodingOptions.with_phrases`
    raises it.

    Args:
        model: Run directory of an English-Portuguese model.
        source: English sentences, one per line. Those with one of `TERMS` are translated.
        count: Number of sentences.
    """
    translator = Translator.load(model)
    pairs = (term.strip().partition(" ") for term in TERMS.replace("\n", " ").split(","))
    glossary = Glossary((term, translation) for term, _, translation in pairs)
    chosen, counts = [], collections.Counter[str]()
    for line in read_lines(source):
        found = [match.translation for match in glossary.matches(line)]
        if len(found) == 1 and counts[found[0]] < _MAX_OF_TERM and len(chosen) < count:
            counts[found[0]] += 1
            chosen.append((line, found[0]))
    lines, expected = zip(*chosen, strict=True)
    references = [one.text for one in translator.translate(lines, beam_size=1)]
    rows = [_terms_row("no terms, greedy", references, references, expected)]
    for beam_size in (1, 2, 4, 8):
        with unittest.mock.patch.object(DecodingOptions, "with_phrases", lambda self, size: self):
            translations = translator.translate(lines, glossary=glossary, beam_size=beam_size)
        texts = [translation.text for translation in translations]
        rows.append(_terms_row(f"beam of {beam_size}", texts, references, expected))
    texts = [one.text for one in translator.translate(lines, glossary=glossary, beam_size=1)]
    rows.append(_terms_row("beam by the number of tokens", texts, references, expected))
    return Report(rows, markdown(rows))


def _terms_row(way, texts, references, terms):
    pairs = list(zip(texts, terms, strict=True))
    row = {"search": way, "with the term": sum(term in text for text, term in pairs)}
    row["begin with it"] = sum(text.lower().startswith(term) for text, term in pairs)
    row["chrF"] = f"{evaluate(texts, references)['chrf']:.1f}"
    log(row)
    return row


def speed(
    model: str,
    source: str,
    rounds: int = 5,
    page_kilobytes: int = 200,
    threads: int | None = None,
    bergamot: str | None = None,
    student: pathlib.Path | None = None,
) -> Report:
    """Seconds of lines and of texts made of them, in turns; and of a page of HTML.

    Args:
        model: Run directory or export, which gives alignments for the page.
        source: Lines, each of one sentence.
        rounds: Rounds; medians are shown.
        page_kilobytes: Size of the page.
        threads: Number of threads of the model; Bergamot has one.
        bergamot: Python 3.10 of an environment with `pip install bergamot`, for a row of the same
            page with Firefox's own engine.
        student: Directory of the model for Bergamot.
    """
    translator = Translator.load(model, threads=threads)
    lines = [line for line in read_lines(source) if line.strip()]
    # The same sentences in all ways: one without a mark would be joined to the next.
    lines = [line if line.rstrip()[-1] in ".!?" else f"{line.rstrip()}." for line in lines]
    page = _page(lines, 1000 * page_kilobytes)
    blocks = page.count("<p>")

    def plain():
        return translator.translate(lines, split_sentences=False, copy_symbols=False)

    def split():
        return translator.translate(lines, split_sentences=True, copy_symbols=True)

    def joined():
        return translator.translate([" ".join(lines)], split_sentences=True)

    def as_html():
        return translator.translate([page], markup="html", split_sentences=True)

    calls: dict[str, Callable] = {
        "lines": plain,
        "lines, each looked at for sentences": split,
        "the lines as one text": joined,
        f"a page of {len(page) / 1000:.0f} kB, {blocks} blocks": as_html,
    }
    if bergamot and student:
        translate = Bergamot(bergamot, student, with_shortlist=True, words=1024, html=True)
        calls["the page, by Bergamot"] = functools.partial(translate, [page])
    for call in calls.values():  # compiles
        call()
    figures = in_turns(calls, rounds)
    rows = []
    for name, seconds in figures.items():
        ratios = sorted(other / one for one, other in zip(figures["lines"], seconds, strict=True))
        row = {"texts": name, "seconds": round(sorted(seconds)[len(seconds) // 2], 2)}
        row["in the time of the lines"] = round(ratios[len(ratios) // 2], 3)
        rows.append(row)
        log(row)
    return Report(rows, markdown(rows))


def _page(lines, size):
    """Returns a page of paragraphs of three lines with a tag, of at least so many bytes."""
    paragraphs, length = [], 0
    rows = itertools.cycle(lines)
    while length < size:
        first, second, third = (html.escape(next(rows), quote=False) for _ in range(3))
        begin, _, rest = second.partition(" ")
        paragraphs.append(f"<p>{first} <b>{begin}</b> {rest} {third}</p>\n")
        length += len(paragraphs[-1].encode())
    return f"<html><body>\n{''.join(paragraphs)}</body></html>\n"


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(paragraphs, capitals, terms, speed, arguments=arguments)


if __name__ == "__main__":
    main()
