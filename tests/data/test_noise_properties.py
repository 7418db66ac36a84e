"""Noise on drawn words, items and vocabularies, compared with changes of single words."""

import itertools

import numpy as np
import pytest

from keras_transformer.base.ids import EOS_ID, UNK_ID
from keras_transformer.data.noise import Noise, PairNoise
from keras_transformer.data.pairs import EncodedPairs

# Noise changes none of these, whatever it does to the words beside them.
_KEPT = (
    "<ph_3> >>epo<< >>zh-Hant<< <bt> https://a.example/Bc?d=e me@example.com 12345678 —–…—–".split()
)
_ITEMS = _KEPT[:6]  # The others only have no letters.
_WORDS = (
    "don't o'Neill McCoy straße über USA it eBay bookkeeper end. wait... really?! ok, 3rd".split()
)
_WORD_CHANGES = {
    "upper_case": str.upper,
    "title_case": lambda word: word[0].upper() + word[1:],
    "no_punctuation": lambda word: word.rstrip(".?!,"),
}


def _text(rng, words=(*_WORDS, *_KEPT)):
    return " ".join(rng.choice(words, rng.integers(1, 15)))


def _expected(kind, text):
    words = [word if word in _KEPT else _WORD_CHANGES[kind](word) for word in text.split(" ")]
    return " ".join(words)


def _is_typo(word, new):
    """Returns whether a word has two letters swapped, or one dropped, doubled or replaced."""
    swapped = {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
    dropped = {word[:i] + word[i + 1 :] for i in range(len(word))}
    doubled = {word[:i] + word[i] + word[i:] for i in range(len(word))}
    replaced = len(word) == len(new) and sum(map(str.__ne__, word, new)) == 1
    return new in swapped | dropped | doubled or replaced


@pytest.mark.parametrize("kind", _WORD_CHANGES)
def test_noise_changes_each_word_of_both_sides_and_no_item(kind):
    rng = np.random.default_rng(1)
    pairs = [(_text(rng), _text(rng)) for _ in range(200)]
    expected = [tuple(_expected(kind, text) for text in pair) for pair in pairs]
    assert list(PairNoise(Noise(**{kind: 1.0})).texts(pairs, 0)) == expected


def test_typos_are_single_edits_of_a_sixth_of_the_words_of_letters():
    rng = np.random.default_rng(2)
    pairs, changed_texts = [(_text(rng), _text(rng)) for _ in range(400)], 0
    long = [word for word in _WORDS if sum(map(str.isalpha, word)) > 3]
    for (source, target), (noisy, same) in zip(
        pairs, PairNoise(Noise(typos=1.0)).texts(pairs, 0), strict=True
    ):
        words, new_words = source.split(" "), noisy.split(" ")
        changed = [(w, n) for w, n in zip(words, new_words, strict=True) if w != n]
        groups = itertools.groupby(words, key=_ITEMS.__contains__)
        # The words between two items, and the spaces at both ends.
        most = sum(-(-(len([*group]) + 2) // 6) for is_item, group in groups if not is_item)
        assert same == target and len(changed) <= most
        assert all(word in long and _is_typo(word, new) for word, new in changed)
        has_long = not {*long}.isdisjoint(words)
        changed_texts += bool(changed) - 0.75 * has_long
    assert changed_texts > 0


class _Letters:
    """A vocabulary with a token per character; UNK for one that it lacks."""

    def __init__(self, characters, first_id):
        self._ids = dict(zip(characters, itertools.count(first_id)))
        self._characters = dict(map(reversed, self._ids.items())) | {UNK_ID: "?"}

    def tokenize(self, text):
        return [self._ids.get(character, UNK_ID) for character in text]

    def detokenize(self, ids):
        return "".join(map(self._characters.get, np.asarray(ids).tolist()))

    def sample(self, text, nbest, alpha, rng):
        return [number for number in self.tokenize(text) for _ in range(2)]


_SIDES = _Letters("abcABdé ?", 10), _Letters("aAbcCÉé ?", 40)


def _of_kinds(shares, terms=None):
    return PairNoise(Noise(**shares), _SIDES, terms)


def test_noise_on_ids_is_noise_on_texts_where_a_vocabulary_spells_both():
    rng = np.random.default_rng(3)
    spelled = [[0, 0], [0, 0]]
    for kind, _ in itertools.product(["upper_case", "title_case", "subwords"], range(150)):
        texts = [" ".join("".join(rng.choice(list("abcdéΩ"), 2)) for _ in range(2)) for _ in "ab"]
        ids = [side.tokenize(text) for side, text in zip(_SIDES, texts, strict=True)]
        noisy = _of_kinds({kind: 1.0}).change(1, np.array([*ids[0], EOS_ID]), np.array(ids[1]), rng)
        expected = []
        for index, (side, old) in enumerate(zip(_SIDES, ids, strict=True)):
            if kind == "subwords":
                new = side.sample(texts[index], 16, 0.2, rng) if index == 0 else old
            else:
                new = side.tokenize(_expected(kind, texts[index]))
            expected.append(old if UNK_ID in (*old, *new) else new)
            spelled[index][expected[-1] != old] += 1
        assert [noisy[0].tolist(), noisy[1].tolist()] == [[*expected[0], EOS_ID], expected[1]]
    assert min(*spelled[0], *spelled[1]) > 20


def test_kinds_are_numbered_without_those_whose_share_is_zero():
    """Each kind of two or three, with terms or without, does what it does alone."""

    def reverse(source, target, rng):
        return source[::-1], target[::-1]

    source, target = np.array([*_SIDES[0].tokenize("ab ?"), EOS_ID]), _SIDES[1].tokenize("ca ?")
    names = ["upper_case", "title_case", "no_punctuation", "subwords"]
    for chosen in (*itertools.combinations(names, 2), *itertools.combinations(names, 3)):
        for terms in (None, (0.1, reverse)):
            noise = _of_kinds(dict.fromkeys(chosen, 0.2), terms)
            alone = [_of_kinds({name: 0.5}) for name in chosen] + [_of_kinds({}, terms)] * bool(
                terms
            )
            assert noise.shares == [0.2] * len(chosen) + [0.1] * bool(terms)
            for kind, one in enumerate(alone, start=1):
                changed = [
                    n.change(k, source, np.array(target), np.random.default_rng(0))
                    for n, k in ((noise, kind), (one, 1))
                ]
                assert [[side.tolist() for side in sides] for sides in changed][0] == [
                    side.tolist() for side in changed[1]
                ]


def test_shapes_of_noisy_pairs_fit_the_kind_that_needs_the_most_columns():
    texts = ["a" * size for size in range(1, 41)]
    pairs = EncodedPairs.from_lists(
        [[*_SIDES[0].tokenize(t), EOS_ID] for t in texts], [_SIDES[1].tokenize("a")] * 40
    )

    def triple(source, target, rng):
        return source * 3, target

    for shares, terms, ratio, longest in (
        ({"subwords": 0.1}, (0.1, lambda *pair: pair[:2]), [81 / 41, 1], 2 * 39 + 1),
        ({"subwords": 0.1}, (0.1, triple), [81 / 41, 3], 3 * 39 + 1),
    ):
        ratios, columns = _of_kinds(shares, terms).stretches(pairs)
        assert columns == longest and ratios == pytest.approx(ratio, rel=0.05)
