"""Noise on training pairs: what it changes, what it leaves, and that an epoch can be repeated."""

import difflib

import keras
import numpy as np
import pytest
from small_corpus import PAIRS

from keras_transformer import Tokenizer
from keras_transformer.data import ParallelDataset, encode_pairs
from keras_transformer.data.noise import Noise, PairNoise
from keras_transformer.ids import EOS_ID, UNK_ID

SOURCES = [f"<2de> {source}" for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def tokenizer():
    # Capitals of every letter, so that the vocabulary can spell what noise makes.
    texts = [*SOURCES, *TARGETS, *(text.upper() for text in (*SOURCES, *TARGETS))]
    letters = "abcdefghijklmnopqrstuvwxyz"
    return Tokenizer.train_from_texts([*texts, f"{letters} {letters.upper()}"], 220, tags=("2de",))


@pytest.fixture(scope="module")
def change(tokenizer):
    """`change(text, target, seed=0, name=share)`: the texts of a pair with one kind of noise."""

    def change(source, target, seed=0, **noise):
        pair_noise = PairNoise(Noise(**noise), (tokenizer, tokenizer))
        ids = [np.array(tokenizer.tokenize(text)) for text in (source, target)]
        ids[0] = np.append(ids[0], EOS_ID)
        noisy_ids = pair_noise.change(1, *ids, np.random.default_rng(seed))
        assert noisy_ids[0][-1] == EOS_ID and EOS_ID not in noisy_ids[0][:-1]
        return noisy_ids[0].tolist(), tuple(tokenizer.detokenize(list(noisy_ids)))

    return change


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("upper_case", ("<2de> A MAN PAINTS A WALL WHITE.", "EIN MANN STREICHT EINE WAND WEISS.")),
        ("title_case", ("<2de> A Man Paints A Wall White.", "Ein Mann Streicht Eine Wand Weiß.")),
        ("no_punctuation", ("<2de> A man paints a wall white", "Ein Mann streicht eine Wand weiß")),
    ],
)
def test_noise_by_hand_leaves_tags(change, kind, expected):
    index = [source for source, _ in PAIRS].index("A man paints a wall white.")
    assert change(SOURCES[index], TARGETS[index], **{kind: 0.5})[1] == expected


@pytest.mark.parametrize("kind", ["upper_case", "title_case", "typos", "no_punctuation"])
def test_noise_leaves_the_language_of_an_imported_model(kind):
    noise = PairNoise(Noise(**{kind: 1.0}))
    for seed in range(30):
        ((source, _),) = noise.texts([(">>epo<< Someone paints.", "Iu farbas.")], seed)
        assert source.startswith(">>epo<< ")


def test_noise_is_of_every_script():
    noise, texts = PairNoise(Noise(no_punctuation=1.0)), ["यह घर है।", "هل هذا، بيت؟", "Սա տուն է։"]
    for text in [*texts, "ဒါအိမ်ပါ။", "这是家。", "ይህ ቤት ነው፣ ነው።"]:
        ((source, target),) = noise.texts([(text, text)], 0)
        assert source == target == "".join(c for c in text if c not in "।،؟։။。፣።")
    text = "கூறுகிறது घरों ကျောင်း"
    noise = PairNoise(Noise(typos=1.0))
    changed = {source for seed in range(30) for source, _ in noise.texts([(text, "")], seed)}
    assert all(any(word not in variant for variant in changed) for word in text.split())


def test_typos_are_few_and_of_the_source_alone(change):
    distances = []
    for seed in range(30):
        _, (source, target) = change(SOURCES[20], TARGETS[20], seed, typos=0.1)
        assert target == TARGETS[20] and source.startswith("<2de> ")
        same = difflib.SequenceMatcher(None, SOURCES[20], source).get_matching_blocks()
        distances.append(len(SOURCES[20]) - sum(block.size for block in same))
    assert 0 < np.mean(distances) < 4 and max(distances) <= 6


def test_sampled_tokens_spell_the_text_in_several_ways(change, tokenizer):
    samples = [change(SOURCES[5], TARGETS[5], seed, subwords=1.0) for seed in range(20)]
    assert {texts for _, texts in samples} == {(SOURCES[5], TARGETS[5])}
    assert len({tuple(ids) for ids, _ in samples}) > 3
    again = change(SOURCES[5], TARGETS[5], 3, subwords=1.0)
    assert again == samples[3]
    sure = {tuple(change(SOURCES[5], "a", s, subwords=1.0, subword_alpha=9.0)[0]) for s in range(9)}
    assert sure == {(*tokenizer.tokenize(SOURCES[5]), EOS_ID)}


@pytest.mark.parametrize("steps", [1, 2])
def test_an_epoch_has_its_share_of_noise_as_many_batches_and_can_be_repeated(tokenizer, steps):
    pairs, _ = encode_pairs(SOURCES * 8, TARGETS * 8, tokenizer, tokenizer, drop_duplicates=False)
    noise = Noise(upper_case=0.25, typos=0.25)
    options = dict(batch_tokens=400, accumulation_steps=steps)
    both = tokenizer, tokenizer
    datasets = [ParallelDataset(pairs, noise=PairNoise(noise, both), **options) for _ in range(2)]
    plain = {tuple(pairs.source(row).tolist()) for row in range(len(pairs))}
    seen = set()
    for epoch in range(3):
        batches = list(datasets[0].batches(epoch))
        assert len(batches) == datasets[0].steps_per_epoch
        rest = list(datasets[1].batches(epoch, start=2))
        for one, other in zip(batches[2:], rest, strict=True):
            assert all(map(np.array_equal, keras.tree.flatten(one), keras.tree.flatten(other)))
        rows = [row[row > 0] for batch in batches for row in batch[0][0] if row[0]]
        assert len(rows) == 256
        texts = tokenizer.detokenize(rows)
        capitals = sum(text[6:].isupper() for text in texts)
        changed = sum(tuple(row.tolist()) not in plain for row in rows)
        # A few do not fit into their shapes.
        assert 48 <= capitals <= 70 and 96 <= changed <= 140
        seen |= {text for text in texts if text[6:].isupper()}
    capitals = {f"<2de> {source[6:].upper()}" for source in SOURCES}
    assert seen <= capitals and len(seen) >= len(capitals) - 1  # The longest may not fit.


def test_equally_short_pairs_leave_room_for_noise(tokenizer):
    texts = SOURCES[:1] * 40, TARGETS[:1] * 40
    pairs, _ = encode_pairs(*texts, tokenizer, tokenizer, drop_duplicates=False)
    noise = PairNoise(Noise(typos=1.0), (tokenizer, tokenizer))
    dataset = ParallelDataset(pairs, shuffle=False, noise=noise)
    (inputs, _), *none = dataset.batches(epoch=0)
    assert not none
    clean = pairs.source(0)
    changed = [not np.array_equal(row[: len(clean)], clean) for row in inputs[0][:40]]
    assert np.mean(changed) > 0.9
    longest = int(pairs.lengths.max())
    for max_length in longest, longest + 1:
        limited = ParallelDataset(pairs, noise=noise, max_length=max_length)
        assert limited.shapes[-1][1] == max_length < dataset.shapes[-1][1]


def test_the_vocabulary_is_learned_from_the_share_of_noise():
    pairs = list(PairNoise(Noise(upper_case=0.5)).texts(zip(SOURCES, TARGETS, strict=True), seed=3))
    capitals = [source[6:].isupper() and target.isupper() for source, target in pairs]
    assert 8 <= sum(capitals) <= 24
    assert all(source.startswith("<2de> ") for source, _ in pairs)


LETTERS = "abcdefghijklmnopqrstuvwxyz"
KINDS = ("upper_case", "title_case", "typos", "no_punctuation", "subwords")


@pytest.fixture(scope="module")
def two_tokenizers():
    """Of the source and of the target; both have `?`, and neither has Ω."""
    letters = [f"{LETTERS} {LETTERS.upper()} was this one mine? yes, war dieses hier das, ja."] * 3
    sides = zip((SOURCES, TARGETS), (160, 150), strict=True)
    return [Tokenizer.train_from_texts([*side, *letters], size) for side, size in sides]


def noisy_ids(kind, tokenizers, texts, seed):
    noise = PairNoise(Noise(**{kind: 1.0}), tuple(tokenizers))
    source, target = (
        np.array(tokenizer.tokenize(text), "int32")
        for tokenizer, text in zip(tokenizers, texts, strict=True)
    )
    rng = np.random.default_rng(seed)
    source, target = noise.change(1, np.append(source, EOS_ID), target, rng)
    assert source[-1] == EOS_ID
    return source[:-1].tolist(), target.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [1, -1])
def test_a_side_with_an_unknown_character_stays_and_the_other_side_changes(
    two_tokenizers, kind, order
):
    # The unknown character would be read back as `??`, which both vocabularies have.
    tokenizers = two_tokenizers[::order]
    texts = ["was this one mine, yes.", "war dieses hier das, ja."][::order]
    plain = [t.tokenize(text) for t, text in zip(tokenizers, texts, strict=True)]
    changed = set()
    for seed in range(20):
        known = noisy_ids(kind, tokenizers, texts, seed)
        changed |= {side for side in (0, 1) if known[side] != plain[side]}
        for sides in ({0}, {1}, {0, 1}):
            spelled = [f"Ω {text}" if side in sides else text for side, text in enumerate(texts)]
            noisy = noisy_ids(kind, tokenizers, spelled, seed)
            for side in (0, 1):
                if side in sides:
                    assert noisy[side] == tokenizers[side].tokenize(spelled[side])
                    assert UNK_ID in noisy[side]
                elif side == 1 or 1 in sides:  # A source's random numbers come first.
                    assert noisy[side] == known[side]
    assert changed == ({0} if kind in ("typos", "subwords") else {0, 1})


@pytest.mark.parametrize("order", [1, -1])
def test_a_side_whose_vocabulary_cannot_spell_its_change_stays(two_tokenizers, order):
    small = Tokenizer.train_from_texts(["was war es das ja"] * 9, 14)
    tokenizers, texts = [two_tokenizers[0], small][::order], ["was es", "es war"]
    noisy = noisy_ids("upper_case", tokenizers, texts, 0)
    read = [t.detokenize([ids])[0] for t, ids in zip(tokenizers, noisy, strict=True)]
    assert read == (["WAS ES", "es war"] if order == 1 else ["was es", "ES WAR"])
