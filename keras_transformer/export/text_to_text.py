"""The whole way from text to text as one TensorFlow function."""

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import search
from keras_transformer.decoding.compiled import compile_for_ids
from keras_transformer.decoding.shapes import length_buckets

CHUNK_SIZE = 32
"""Most sentences in one call of the compiled search, a power of two: it bounds the memory of a
large request, and with it the number of programs that XLA compiles."""

# What `str.strip` takes away; RE2's `\s` knows ASCII alone.
_BLANK = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"


def trackable_variables(model):
    """The weights of a Keras model as plain TensorFlow variables, for a SavedModel to track.

    Tracking the model itself gives each weight a second handle that nothing initializes: the
    Python loader works, sessions (TensorFlow Serving, the C library) end with "uninitialized".
    """
    return [variable.value for variable in model.variables]


def text_to_text(engine, beam_size, length_penalty):
    """Traces what `ModelEngine.translate` does as one TensorFlow function.

    The search is compiled by XLA, once for each padded shape that occurs: a power of two of
    sentences up to `CHUNK_SIZE` and one of the `length_buckets`. Longer batches are translated
    `CHUNK_SIZE` sentences at a time, sorted by length, exactly as the engine does.

    Args:
        engine: `ModelEngine`.
        beam_size: Hypotheses that stay alive; 1 is greedy search.
        length_penalty: Exponent of the GNMT length penalty.

    Returns:
        A concrete function from `text`, string `(batch,)`, to `translation`, string `(batch,)`,
        and `score`, float32 `(batch,)`. Blank texts give "" and 0.
    """
    import tensorflow as tf

    from keras_transformer.text.graph import GraphTokenizer

    source_tokenizer = GraphTokenizer(engine.source_tokenizer)
    target_tokenizer = GraphTokenizer(engine.target_tokenizer)

    def best(source_ids):
        hypotheses = search(
            engine.model,
            source_ids,
            beam_size=beam_size,
            alpha=length_penalty,
            n_best=1,
            max_length=engine.max_target_length,
        )
        return hypotheses.ids[:, 0], hypotheses.scores[:, 0]

    compiled = compile_for_ids(engine.model, best)

    def translate(text):
        ids = _source_ids(tf, source_tokenizer, text, engine.max_source_length)
        places = _longest_first(tf, text, ids.row_lengths())

        def translate_chunk(start, translations, scores):
            chosen = places[start : start + CHUNK_SIZE]
            count = tf.size(chosen)
            target_ids, chunk_scores = compiled(
                _pad(tf, tf.gather(ids, chosen), count, engine.max_source_length)
            )
            texts = target_tokenizer.detokenize(target_ids[:count])
            at = tf.expand_dims(chosen, 1)
            return (
                start + CHUNK_SIZE,
                tf.tensor_scatter_nd_update(translations, at, texts),
                tf.tensor_scatter_nd_update(scores, at, chunk_scores[:count]),
            )

        # No chunk, no call: XLA fails on an empty batch.
        _, translations, scores = tf.while_loop(
            lambda start, *_: start < tf.size(places),
            translate_chunk,
            (0, tf.fill(tf.shape(text), ""), tf.zeros(tf.shape(text))),
            # One chunk at a time: more would hold several caches at once.
            parallel_iterations=1,
        )
        return {"translation": translations, "score": scores}

    signature = [tf.TensorSpec((None,), tf.string, name="text")]
    return tf.function(translate, signature, autograph=False).get_concrete_function()


def _source_ids(tf, tokenizer, text, max_length):
    """Ids of each text, cut at `max_length`; the last one is always the end."""
    ids = tokenizer.tokenize(text)[:, : max_length - 1]
    return tf.concat([ids, tf.fill([tf.size(text), 1], EOS_ID)], axis=1)


def _longest_first(tf, text, lengths):
    """Places of the texts that are not blank, by falling length: int64 `(at most batch,)`."""
    present = tf.where(~tf.strings.regex_full_match(text, _BLANK))[:, 0]
    order = tf.argsort(tf.gather(lengths, present), direction="DESCENDING", stable=True)
    return tf.gather(present, order)


def _pad(tf, ids, count, max_length):
    """Ragged rows to the few shapes that `pad_to_few_shapes` makes."""
    powers = tf.constant([2**i for i in range(CHUNK_SIZE.bit_length())])
    rows = tf.reduce_min(tf.boolean_mask(powers, powers >= count))
    dense = ids.to_tensor(default_value=PAD_ID)
    longest = tf.shape(dense)[1]
    buckets = tf.constant(length_buckets(max_length))
    columns = tf.reduce_min(tf.boolean_mask(buckets, buckets >= longest))
    return tf.pad(dense, [[0, rows - count], [0, columns - longest]], constant_values=PAD_ID)
