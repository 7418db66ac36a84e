import re

import keras
import numpy as np
import pytest

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy, TokenLoss
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, NO_LABEL, PAD_ID, UNK_ID
from keras_transformer.data import EncodedPairs, LabelledDataset, ParallelDataset
from tests import reference


def random_pairs(count, seed=0):
    """Pairs that are all different: the first id of each side is the pair's own number."""
    rng = np.random.default_rng(seed)
    sources, targets = (
        [[10 + i, *rng.integers(4, 9, n - 1).tolist()] for i, n in enumerate(side)]
        for side in rng.integers(1, 12, (2, count))
    )
    sources = [[*row, EOS_ID] for row in sources]
    return EncodedPairs.from_lists(sources, targets), sources, targets


def unpadded(row):
    """The row without its padding, which must all stand at its end."""
    count = int(np.sum(row != PAD_ID))
    assert not row[count:].any()
    return row[:count].tolist()


def test_a_batch_done_by_hand():
    pairs = EncodedPairs.from_lists([[7, 8, 2], [9, 2]], [[5], [6, 4, 6]])
    dataset = ParallelDataset(pairs, shapes=[(3, 5)], shuffle=False)
    [((source_ids, target_in_ids), target_out_ids)] = dataset.batches(0)
    assert source_ids.tolist() == [[7, 8, 2, 0, 0], [9, 2, 0, 0, 0], [0] * 5]
    assert target_in_ids.tolist() == [[1, 5, 0, 0, 0], [1, 6, 4, 6, 0], [0] * 5]
    assert target_out_ids.tolist() == [[5, 2, 0, 0, 0], [6, 4, 6, 2, 0], [0] * 5]
    assert {a.dtype for a in (source_ids, target_in_ids, target_out_ids)} == {np.dtype(np.int32)}
    # Source 3 + 2, target 2 + 4, of two arrays of 15 positions.
    assert dataset.real_tokens == 11 and dataset.real_token_share == 11 / 30


def test_an_unknown_token_of_a_target_is_read_but_is_no_label():
    pairs = EncodedPairs.from_lists([[7, UNK_ID, 2], [9, 2]], [[5, UNK_ID, 6], [UNK_ID]])
    dataset = ParallelDataset(pairs, shapes=[(2, 5)], shuffle=False)
    [((source_ids, target_in_ids), target_out_ids)] = dataset.batches(0)
    assert source_ids.tolist() == [[7, UNK_ID, 2, 0, 0], [9, 2, 0, 0, 0]]
    assert target_in_ids.tolist() == [[1, 5, UNK_ID, 6, 0], [1, UNK_ID, 0, 0, 0]]
    assert target_out_ids.tolist() == [[5, PAD_ID, 6, 2, 0], [PAD_ID, 2, 0, 0, 0]]
    assert dataset.real_tokens == 5 + 6  # The model reads them.


def test_loss_and_metrics_leave_unknown_tokens_of_targets_out():
    targets = [[5, UNK_ID, 6], [UNK_ID], [4, 4]]
    pairs = EncodedPairs.from_lists([[7, 2]] * 3, targets)
    table = np.random.default_rng(1).normal(0, 2, (11, 11)).astype("float32")
    inputs = [keras.Input((None,), dtype="int32") for _ in range(2)]
    logits = keras.layers.Embedding(11, 11, weights=[table])(inputs[1])
    model = keras.Model(inputs, logits)
    metrics = [TokenLoss(0.2), TokenAccuracy(), Perplexity()]
    model.compile("sgd", SmoothedCrossEntropy(0.2), metrics=metrics)
    dataset = ParallelDataset(pairs, shapes=[(2, 5)], shuffle=False).to_py_dataset()
    logs = model.evaluate(dataset, verbose=0, return_dict=True)
    # Each token is predicted from the token before it; an unknown token is read.
    rows = [[BOS_ID, *target, EOS_ID] for target in targets]
    steps = [pair for row in rows for pair in zip(row, row[1:], strict=False) if pair[1] != UNK_ID]
    labels, logits = np.array([label for _, label in steps]), table[[read for read, _ in steps]]
    assert len(steps) == 3 + 1 + 3  # 5, 6 and EOS; EOS; 4, 4 and EOS
    assert logs["loss"] == pytest.approx(reference.smoothed_loss(labels, logits, 0.2), rel=1e-5)
    assert logs["perplexity"] == pytest.approx(reference.perplexity(labels, logits), rel=1e-5)
    assert logs["token_accuracy"] == pytest.approx(np.mean(logits.argmax(1) == labels), rel=1e-5)


def test_the_fourth_label_of_a_classifier_is_a_label():
    pairs = EncodedPairs.from_lists([[7, 2], [8, 2], [9, 2]], [[UNK_ID], [4], [1]])
    options = {"shapes": [(2, 3)], "shuffle": False, "accumulation_steps": 2}
    batches = list(LabelledDataset(pairs, **options).batches(0))
    assert [labels.tolist() for _, labels, _ in batches] == [[[UNK_ID], [4]], [[1], [NO_LABEL]]]
    assert all(np.allclose(weights, 2 / 3) for *_, weights in batches)  # 2 batches, 3 texts


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_comes_once_an_epoch_in_a_promised_shape(shuffle):
    pairs, sources, targets = random_pairs(211)
    dataset = ParallelDataset(pairs, batch_tokens=97, max_shapes=3, shuffle=shuffle)
    assert len(dataset.shapes) == 3
    seen, positions = [], 0
    for (source_ids, target_in_ids), target_out_ids in dataset.batches(epoch=5):
        assert source_ids.shape in dataset.shapes
        assert source_ids.shape == target_in_ids.shape == target_out_ids.shape
        positions += 2 * source_ids.size
        rows = zip(source_ids, target_in_ids, target_out_ids, strict=True)
        for source, target_in, target_out in rows:
            if not source.any():
                assert not target_in.any() and not target_out.any()
                continue
            target = unpadded(target_out)
            assert target.pop() == EOS_ID and unpadded(target_in) == [BOS_ID, *target]
            seen.append((unpadded(source), target))
    assert sorted(seen) == sorted(zip(sources, targets, strict=True))
    tokens = sum(map(len, sources)) + sum(len(target) + 1 for target in targets)
    assert dataset.real_tokens == tokens
    assert dataset.real_token_share == tokens / positions


def as_lists(dataset, epoch):
    return [(a.tolist(), b.tolist(), c.tolist()) for (a, b), c in dataset.batches(epoch)]


def test_the_order_follows_from_seed_and_epoch():
    pairs, _, _ = random_pairs(101)
    first, same = (ParallelDataset(pairs, batch_tokens=50, seed=3) for _ in range(2))
    assert as_lists(first, 4) == as_lists(same, 4)
    assert as_lists(first, 4) != as_lists(ParallelDataset(pairs, batch_tokens=50, seed=4), 4)
    # Shuffled within a shape as well as over batches.
    assert sorted(as_lists(first, 4)) != sorted(as_lists(first, 5))
    lengths = [length for _, length in first.step_shapes(4)]
    assert lengths != sorted(lengths)
    fixed = ParallelDataset(pairs, batch_tokens=50, shuffle=False)
    assert as_lists(fixed, 4) == as_lists(fixed, 5)


def test_the_shapes_of_an_epochs_steps_are_those_of_its_batches():
    pairs, _, _ = random_pairs(101)
    dataset = ParallelDataset(pairs, batch_tokens=50, max_shapes=3)
    for epoch in (0, 3):
        expected = [labels.shape for _, labels in dataset.batches(epoch)]
        assert dataset.step_shapes(epoch) == expected and len(set(expected)) == 3


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("options", [{}, {"rates": [0.7]}, {"rates": [2.3]}])
def test_accumulated_batches_weigh_by_the_tokens_of_their_step(options, steps):
    pairs, options = random_pairs(20)[0], {"batch_tokens": 20, **options}
    pairs.target_flat[::3] = UNK_ID  # tokens without a weight
    dataset = ParallelDataset(pairs, **options, accumulation_steps=steps)
    batches = [(labels, weights) for _, labels, weights in dataset.batches(1)]
    plain = [labels for _, labels in ParallelDataset(pairs, **options).batches(1)]
    assert len(batches) == dataset.steps_per_epoch
    assert len(batches) % steps == 0 and len(batches) - len(plain) < steps
    assert not any(labels.any() for labels, _ in batches[len(plain) :])
    for (labels, _), expected in zip(batches, plain, strict=False):
        assert np.array_equal(labels, expected)
    for start in range(0, len(batches), steps):
        step = batches[start : start + steps]
        # A loss of 1 per token: the mean over the step's batches of their weighted sums is 1.
        sums = [(weights[:, None] * (labels != 0)).sum() for labels, weights in step]
        assert np.mean(sums) == pytest.approx(1.0, rel=1e-6)


def test_each_batch_of_a_step_is_the_same_whatever_was_read_before_it():
    options = {"batch_tokens": 40, "accumulation_steps": 2}
    dataset = ParallelDataset(random_pairs(40)[0], **options)
    last = dataset.steps_per_epoch - 1
    for epoch, step in ((0, last), (0, 0), (1, 0), (1, 3), (1, 2), (0, 1), (0, last), (0, 1)):
        other = ParallelDataset(random_pairs(40)[0], **options)
        (*_, read, _), (*_, expected, _) = (
            next(one.batches(epoch, step)) for one in (dataset, other)
        )
        assert np.array_equal(read, expected)


OUT_OF_RANGE = [("seed", value) for value in (-1, 0.5, None, True)] + [("host", 1)]
OUT_OF_RANGE += [(name, 0) for name in ("accumulation_steps", "hosts", "shards")]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_an_option_out_of_range_is_refused(name, value):
    with pytest.raises(InputError, match=f"`{name}` must be .* Received: {name}={value}"):
        ParallelDataset(EncodedPairs.from_lists([[5] * 11], [[6]]), **{name: value})


@pytest.mark.parametrize("rates", [[1.0], [1.0, 1.0, 1.0], [], [1.0, -0.5], [np.nan, 1.0]])
def test_rates_are_a_number_per_corpus(rates):
    pairs = random_pairs(9)[0]
    pairs.corpora = {"web": 5, "own": 4}
    message = rf"`rates` must have .* Received: rates={re.escape(str(rates))}, .*'web', 'own'"
    with pytest.raises(InputError, match=message):
        ParallelDataset(pairs, rates=rates)


def test_a_corpus_without_pairs_changes_nothing():
    pairs = random_pairs(9)[0]
    expected = ParallelDataset(pairs).real_tokens
    pairs.corpora = {"web": 9, "own": 0}
    assert ParallelDataset(pairs, rates=[1.0, 2.0]).real_tokens == expected


def test_a_lone_pair_at_a_low_rate_is_in_some_epochs_and_all_have_the_same_batches():
    pairs = EncodedPairs.from_lists([[7] * 20, *[[5] * 3] * 6], [[8] * 20, *[[6] * 3] * 6])
    pairs.corpora = {"rare": 1, "web": 6}
    dataset = ParallelDataset(pairs, shapes=[(3, 4), (1, 21)], rates=[0.25, 1.0])
    epochs = [list(dataset.batches(epoch)) for epoch in range(8)]
    for batches in epochs:
        assert sorted(labels.shape for _, labels in batches) == [(1, 21), (3, 4), (3, 4)]
    rows = [sum(np.sum(labels[:, 0] == 8) for _, labels in batches) for batches in epochs]
    assert sum(rows) == 2 and rows[:4] == rows[4:]


def test_a_tensorflow_dataset_gives_an_epoch_a_pass():
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    pairs, _, _ = random_pairs(101)
    dataset = ParallelDataset(pairs, batch_tokens=50)
    batches = dataset.to_tf_dataset()
    ids = tf.TensorSpec((None, None), tf.int32)
    assert batches.element_spec == ((ids, ids), ids)
    assert int(batches.cardinality()) == dataset.steps_per_epoch
    assert dataset.steps_per_epoch > 20  # so that a peek stays far from the end

    def one_pass():
        elements = batches.as_numpy_iterator()
        return [(a.tolist(), b.tolist(), c.tolist()) for (a, b), c in elements]

    assert one_pass() == as_lists(dataset, 0)
    assert dataset.epoch == 1
    next(iter(batches))
    assert one_pass() == as_lists(dataset, 1)
    dataset.epoch = 7
    assert one_pass() == as_lists(dataset, 7)
    assert dataset.epoch == 8


def test_keras_cannot_shuffle_the_batches_of_a_keras_dataset():
    ids = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    vectors = [keras.layers.Embedding(400, 1)(side) for side in ids]
    # Keras 3.12 refuses an input that no output needs.
    model = keras.Model(ids, vectors[1] + keras.ops.mean(vectors[0], axis=1, keepdims=True))
    loss = lambda labels, outputs: keras.ops.mean(outputs[..., 0], axis=-1)  # noqa: E731
    model.compile("sgd", loss, run_eagerly=True)
    # Keras on TensorFlow takes one length for all where the first two batches have one.
    dataset = ParallelDataset(random_pairs(101)[0], shapes=[(4, 12)], accumulation_steps=2)
    with pytest.raises(Exception, match="Call `fit` with `shuffle=False`"):
        model.fit(dataset.to_py_dataset(), verbose=0)
    py_dataset = dataset.to_py_dataset()
    model.fit(py_dataset, epochs=2, shuffle=False, validation_data=py_dataset, verbose=0)
    part = {"steps_per_epoch": len(py_dataset) // 2, "epochs": 2}
    model.fit(dataset.to_py_dataset(), shuffle=False, **part, verbose=0)


def test_the_rows_of_all_hosts_together_are_the_batch():
    rows = [[5 + row] * (1 + row % 3) for row in range(9)]
    pairs = EncodedPairs.from_lists([[*row, 2] for row in rows], rows)
    options = dict(shapes=[(3, 2), (5, 4)])
    hosts = [ParallelDataset(pairs, **options, host=i, hosts=2, shards=4) for i in range(2)]
    whole = ParallelDataset(pairs, **options).batches(epoch=1)
    for batch, *parts in zip(whole, *(host.batches(epoch=1) for host in hosts), strict=True):
        sides = [(inputs[0], labels) for inputs, labels in (batch, *parts)]
        for expected, *host_rows in zip(*sides, strict=True):
            assert len(host_rows[0]) == len(host_rows[1])
            together = np.concatenate(host_rows)
            assert len(together) % 4 == 0
            np.testing.assert_array_equal(together[: len(expected)], expected)
            assert not together[len(expected) :].any()


def test_a_label_is_a_target_of_one_token_and_padding_has_none():
    sources = [7, 8, 2, 9, 2], [0, 3, 5]
    pairs = EncodedPairs(*map(np.array, (*sources, [1, 0], [0, 1, 2])))
    options = dict(shapes=[(3, 4)], shuffle=False, accumulation_steps=2)
    dataset = LabelledDataset(pairs, **options)
    ((source_ids,), labels, weights), (_, empty, _) = dataset.batches(0)
    assert source_ids.tolist() == [[7, 8, 2, 0], [9, 2, 0, 0], [0, 0, 0, 0]]
    # 0 is a label.
    assert labels.tolist() == [[1], [0], [-1]] and (empty == -1).all()
    # The mean over two batches of the sums of two losses in all is the mean over two labels.
    np.testing.assert_allclose(weights, [1, 1, 1])
    assert (dataset.real_tokens, dataset.real_token_share) == (5, pytest.approx(5 / 12))
    (tf_ids,), *_ = next(iter(dataset.to_tf_dataset()))
    np.testing.assert_array_equal(tf_ids, source_ids)


def test_weighted_corpora_give_every_epoch_as_many_batches_from_any_step():
    pairs, sources, _ = random_pairs(101)
    pairs.corpora = {"a": 60, "b": 41}
    options = dict(batch_tokens=50, max_shapes=3, accumulation_steps=2, rates=[0.3, 2.0])
    dataset = ParallelDataset(pairs, **options)
    counts = np.zeros(101, int)
    for epoch in range(10):
        batches = list(dataset.batches(epoch))
        assert len(batches) == dataset.steps_per_epoch
        for (source_ids, _), _, _ in batches:
            np.add.at(counts, source_ids[source_ids[:, 0] >= 10, 0] - 10, 1)
    assert set(counts[:60]) <= {2, 3, 4} and set(counts[60:]) == {20}
    assert sum(counts[:60]) == 180
    rest = list(dataset.batches(7, start=5))
    for one, other in zip(rest, list(dataset.batches(7))[5:], strict=True):
        assert all(map(np.array_equal, keras.tree.flatten(one), keras.tree.flatten(other)))
    lines = dataset.lines(7, 0)
    rows = next(dataset.batches(7))[0][0][:, 0] - 9
    assert sorted([*lines["a"], *lines["b"]]) == sorted(rows[rows > 0].tolist())
    assert max(lines["a"], default=0) <= 60 < min(lines["b"], default=61)
