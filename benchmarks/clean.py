"""Damaged pairs and good pairs that `keras-transformer clean` removes from a corpus.

pip install ".[clean]"
python -m benchmarks.clean --source train.en --target train.de --test test.en test.de \
    --other train.es --languages en de
"""

import collections
import pathlib
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import command_line
from benchmarks.command_line import Report, markdown
from keras_transformer.data import read_lines, read_pairs
from keras_transformer.extras.corpora.cleaning import CleanOptions, clean_corpora
from keras_transformer.extras.corpora.rules import skeleton

Pair = tuple[str, str]
_SIGNS = "*#|-_=+/<>0123456789 "
_EXAMPLES = 20
# Sentences of the third language are long enough to identify their language.
_OTHER_NEEDS_CHARACTERS = 30


def clean(
    source: str,
    target: str,
    test: Sequence[str],
    other: str,
    languages: Sequence[str],
    processes: int | None = None,
) -> Report:
    """Damages every second pair in one of eleven ways, and counts what `clean` removes.

    Pairs of the corpus count as good, except near-duplicates and pairs with a sentence of the test
    set, which are left out.

    Args:
        source: Source text in Latin script.
        target: Its translation in Latin script.
        test: Source and target of the test set.
        other: Text in a third language.
        languages: ISO 639-1 codes of the source and the target.
        processes: Number of processes that apply the rules; by default one per processor.
    """
    test_pairs = list(zip(*read_pairs(*test), strict=True))
    pairs = _distinct(zip(*read_pairs(source, target), strict=True), test_pairs)
    others = [line for line in read_lines(other) if len(line) > _OTHER_NEEDS_CHARACTERS]
    damaged_pairs, kinds = zip(*damage(pairs, test_pairs, others), strict=True)
    # Escapes stay, so that each remaining pair is one of the damaged pairs.
    options: dict[str, Any] = {"target_scripts": ["Latin"], "processes": processes}
    options["escapes"] = "keep"
    options |= dict(zip(("source_language", "target_language"), languages, strict=True))
    remaining_pairs = _cleaned(damaged_pairs, test, options)

    rules, total = CleanOptions(**options), collections.Counter(kinds)
    removed: collections.Counter[str | None] = collections.Counter()
    removed_by_rule: collections.Counter[str] = collections.Counter()
    examples: dict[str, list[Pair]] = {}
    following = next(remaining_pairs, None)
    for pair, kind in zip(damaged_pairs, kinds, strict=True):
        if pair == following:
            following = next(remaining_pairs, None)
            continue
        removed[kind] += 1
        if kind is None:
            rule = rules.broken(*pair) or "duplicate or held_out"
            removed_by_rule[rule] += 1
            if len(rule_examples := examples.setdefault(rule, [])) < _EXAMPLES:
                rule_examples.append(pair)
    assert following is None, "the remaining pairs must keep their order"

    good_pairs, removed_good_pairs = total.pop(None), removed.pop(None, 0)
    shares = {kind: round(removed[kind] / total[kind], 4) for kind in sorted(total)}
    figures = {
        "good_pairs": good_pairs,
        "removed_good_pairs": removed_good_pairs,
        "removed_good_pairs_by_rule": dict(removed_by_rule.most_common()),
        "damaged_pairs": total.total(),
        "removed_damaged_pairs": removed.total(),
        "recall": round(removed.total() / total.total(), 4),
        "precision": round(removed.total() / (removed.total() + removed_good_pairs), 4),
        "removed_by_damage": shares,
        "examples_of_removed_good_pairs": examples,
    }
    rows = [{"damage": kind, "removed": f"{share:.1%}"} for kind, share in shares.items()]
    return Report(figures, markdown(rows))


def _distinct(pairs, test_pairs):
    """Returns the pairs without near-duplicates and without sentences of the test set."""
    test_sentences = {skeleton(text) for pair in test_pairs for text in pair}
    by_letters: dict[tuple[str, ...], Pair] = {}
    for pair in pairs:
        letters = tuple(map(skeleton, pair))
        if test_sentences.isdisjoint(letters):
            by_letters.setdefault(letters, pair)
    return list(by_letters.values())


def damage(
    pairs: Sequence[Pair], test_pairs: Sequence[Pair], others: Sequence[str]
) -> Iterator[tuple[Pair, str | None]]:
    """Yields each pair, about half of them damaged, and the kind of the damage or None."""
    rng = random.Random(11)
    good_pairs: collections.deque[Pair] = collections.deque(maxlen=200)

    def other_year(source, target):
        years = f"19{rng.randrange(50):02d}", f"19{rng.randrange(50, 100)}"
        return f"{source[:-1]} in {years[0]}.", f"{target[:-1]} {years[1]}."

    def in_cyrillic(text):
        return "".join(chr(0x430 + ord(c) % 32) if c.isalpha() else c for c in text)

    def near_duplicate(source, target):
        source, target = rng.choice(good_pairs)
        return source.upper(), target.rstrip(".") + " !"

    kinds: dict[str, Callable[[str, str], Pair]] = {
        "another sentence's translation": lambda s, t: (s, rng.choice(pairs)[1]),
        "four fifths of the target missing": lambda s, t: (s, t[: len(t) // 5]),
        "copy of the source": lambda s, t: (s, s),
        "target in another language": lambda s, t: (s, rng.choice(others)),
        "UTF-8 read as Latin-1": lambda s, t: (s, f"{t} Schön!".encode().decode("latin-1")),
        "another year": other_year,
        "URL on one side": lambda s, t: (f"{s} www.shop-{rng.randrange(999)}.com", t),
        "signs for the target": lambda s, t: (s, "".join(rng.choices(_SIGNS, k=40))),
        "target in another script": lambda s, t: (s, in_cyrillic(t)),
        "near-duplicate": near_duplicate,
        "sentence of the test set": lambda s, t: rng.choice(test_pairs),
    }
    for pair in pairs:
        kind = rng.choice(list(kinds)) if good_pairs and rng.random() < 0.5 else None
        if kind is None:
            good_pairs.append(pair)
        yield (pair if kind is None else kinds[kind](*pair)), kind


def _cleaned(pairs, held_out, options):
    """Returns an iterator of the pairs that `clean` leaves."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = [pathlib.Path(folder, name) for name in ("source", "target")]
        for path, side in zip(corpus, zip(*pairs, strict=True), strict=True):
            path.write_text("".join(text + "\n" for text in side), encoding="utf-8")
        output = pathlib.Path(folder, "cleaned")
        clean_corpora([tuple(corpus)], output, held_out, **options)
        return iter(list(zip(*read_pairs(output / "source", output / "target"), strict=True)))


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(clean, arguments=arguments)


if __name__ == "__main__":
    main()
