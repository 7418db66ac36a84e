"""Noise on training pairs: what it changes, what it leaves, and that an epoch can be repeated."""

import keras
import numpy as np
import pytest
from small_corpus import PAIRS

from keras_transformer import Tokenizer
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import EOS_ID
from keras_transformer.data import EncodedPairs, ParallelDataset, encode_pairs
from keras_transformer.data.noise import Noise, PairNoise

SOURCES = [f"<2de> {source}" for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def tokenizer():
    # Capitals of every letter, so that the vocabulary can spell what noise makes.
    texts = [*SOURCES, *TARGETS, *(text.upper() for text in (*SOURCES, *TARGETS))]
    letters = "abcdefghijklmnopqrstuvwxyz"
    return Tokenizer.train_from_texts([*texts, f"{letters} {letters.upper()}"], 220, tags=("2de",))


def test_noise_is_of_every_script():
    noise, texts = PairNoise(Noise(no_punctuation=1.0)), ["यह घर है।", "هل هذا، بيت؟", "Սա տուն է։"]
    for text in [*texts, "ဒါအိမ်ပါ။", "这是家。", "ይህ ቤት ነው፣ ነው።"]:
        ((source, target),) = noise.texts([(text, text)], 0)
        assert source == target == "".join(c for c in text if c not in "।،؟։။。፣።")
    text = "கூறுகிறது घरों ကျောင်း"
    noise = PairNoise(Noise(typos=1.0))
    changed = {source for seed in range(30) for source, _ in noise.texts([(text, "")], seed)}
    assert all(any(word not in variant for variant in changed) for word in text.split())


def test_sampled_tokens_spell_the_text_in_several_ways(tokenizer):
    source, target = map(np.array, tokenizer.tokenize([SOURCES[5], TARGETS[5]]))
    source = np.append(source, EOS_ID)

    def sample(seed):
        noise = PairNoise(Noise(subwords=1.0), (tokenizer, tokenizer))
        noisy_ids = noise.change(1, source, target, np.random.default_rng(seed))
        assert np.array_equal(noisy_ids[1], target)
        return tuple(noisy_ids[0].tolist())

    samples = [sample(seed) for seed in range(20)]
    assert {ids.index(EOS_ID) - len(ids) for ids in samples} == {-1}
    assert set(tokenizer.detokenize(samples)) == {SOURCES[5]} and len(set(samples)) > 3
    assert sample(3) == samples[3]


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


@pytest.mark.parametrize("steps", [2, 6, 26])
@pytest.mark.parametrize("options", [{}, {"noise": Noise(typos=0.5)}, {"rates": [1.6]}])
def test_epochs_of_some_steps_are_one_pass_after_the_other(tokenizer, options, steps):
    pairs, _ = encode_pairs(SOURCES * 4, TARGETS * 4, tokenizer, tokenizer, drop_duplicates=False)
    if "noise" in options:
        options = {"noise": PairNoise(options["noise"], (tokenizer, tokenizer))}
    options = dict(batch_tokens=300, accumulation_steps=2, **options)
    passes = ParallelDataset(pairs, **options)
    epochs = ParallelDataset(pairs, **options, steps_per_epoch=steps)
    count = passes.steps_per_epoch
    assert steps % count and epochs.steps_per_epoch == steps
    expected = [batch for turn in range(6) for batch in passes.batches(turn)]
    lines = [passes.lines(turn, step) for turn in range(6) for step in range(count)]
    numbers = range(len(expected) // steps)
    assert len(numbers) > 1
    for epoch in reversed(numbers):  # in any order
        for step, batch in enumerate(epochs.batches(epoch)):
            other = expected[epoch * steps + step]
            assert all(map(np.array_equal, keras.tree.flatten(batch), keras.tree.flatten(other)))
            assert epochs.lines(epoch, step) == lines[epoch * steps + step]
    share = epochs.real_tokens / passes.real_tokens
    assert share == pytest.approx(steps / count, rel=0.01)
    with pytest.raises(InputError, match="multiple of `accumulation_steps`. Received: steps_per_e"):
        ParallelDataset(pairs, **options, steps_per_epoch=steps + 1)


def test_a_pair_has_other_noise_in_the_next_pass(tokenizer):
    pairs, _ = encode_pairs(SOURCES, TARGETS, tokenizer, tokenizer, drop_duplicates=False)
    noise = PairNoise(Noise(typos=1.0), (tokenizer, tokenizer))
    dataset = ParallelDataset(pairs, batch_tokens=300, noise=noise)
    first, second = (
        {tuple(row) for batch in dataset.batches(turn) for row in batch[0][0]} for turn in (0, 1)
    )
    assert len(first & second) < len(first) / 2


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_each_pair_is_changed_once_an_epoch_whatever_the_accumulation(tokenizer, steps, start):
    pairs, _ = encode_pairs(SOURCES * 4, TARGETS * 4, tokenizer, tokenizer, drop_duplicates=False)
    noise, changed = PairNoise(Noise(upper_case=1.0), (tokenizer, tokenizer)), []
    options = dict(batch_tokens=300, accumulation_steps=steps, noise=noise)
    dataset = ParallelDataset(pairs, **options)
    first_step = dataset.plan.batches(0)[:steps]
    noise.change = lambda kind, source, target, rng: changed.append(1) or (source, target)
    assert len(list(dataset.batches(0, start))) == dataset.steps_per_epoch - start
    # A pass that starts inside a step reads all of the step, to count its tokens.
    is_skipped = start and steps == 1
    assert len(changed) == len(pairs) - (len(first_step[0].rows) if is_skipped else 0)


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


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        ([7, 7, 7, 7, EOS_ID], [9, 9, 9, 9], True),  # with its EOS, a target of 5 ids
        ([7, 7, 7, 7, 7, EOS_ID], [9], False),
        ([7, EOS_ID], [9, 9, 9, 9, 9], False),
    ],
)
def test_a_pair_that_noise_makes_longer_than_its_batch_has_no_noise(source, target, fits):
    noise = PairNoise(Noise(upper_case=1.0))
    noise.change = lambda *_: (np.array(source, "int32"), np.array(target, "int32"))
    pairs = EncodedPairs.from_lists([[8, EOS_ID]], [[6]])
    dataset = ParallelDataset(pairs, shapes=[(1, 5)], noise=noise)
    ((source_ids, _), labels), *none = dataset.batches(epoch=0)
    assert not none
    clean = [8, EOS_ID, 0, 0, 0], [6, EOS_ID, 0, 0, 0]
    expected = (source, [*target, EOS_ID]) if fits else clean
    assert (source_ids[0].tolist(), labels[0].tolist()) == expected


def test_the_vocabulary_is_learned_from_the_share_of_noise():
    pairs = list(PairNoise(Noise(upper_case=0.5)).texts(zip(SOURCES, TARGETS, strict=True), seed=3))
    capitals = [source[6:].isupper() and target.isupper() for source, target in pairs]
    assert 8 <= sum(capitals) <= 24
    assert all(source.startswith("<2de> ") for source, _ in pairs)
