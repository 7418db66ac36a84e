"""Where the time of decoding goes, by kind of operation.

    python -m benchmarks.decode_profile --batch-size 32 --beam-size 1
    python -m benchmarks.decode_profile --batch-size 16 --beam-size 4 --model RUN --source FILE

Random sentences with a random model, each forced to 32 steps, as `benchmarks.decode` does; or a
text with a trained run and the recipe's length penalty. After a warm-up one call is timed and one
is watched by TensorFlow's profiler. JSON on stdout: milliseconds on all threads by the operations'
names in XLA, without their numbers; what is left of the threads' time, when nothing ran, or the
part of a product that is not the calling thread's, or Python; the machine's matrix-product rate,
measured in the same process; and the share of it that the search of random sentences reaches.
"""

import argparse
import collections
import json
import pathlib
import re
import tempfile
import time

from benchmarks.decode import random_model, random_sentences
from benchmarks.engines import Ours
from benchmarks.measure import machine, use_threads
from keras_transformer import Translator
from keras_transformer.files import read_lines

LENGTH = STEPS = 32
MATRIX_SIZE = 2048
# Operations that hold others, whose time would count twice.
OUTER = {"while", "conditional", "call"}


def forced(preset, vocabulary_size, batch_size, beam_size):
    """A function that decodes random sentences, and its floating-point operations."""
    model = random_model(preset, vocabulary_size)
    source_ids = random_sentences(vocabulary_size, batch_size, LENGTH)
    work = 2 * multiply_adds(model.config, batch_size, beam_size, LENGTH, STEPS)
    return Ours(model).forced(source_ids, beam_size, STEPS), work


def text(run, source, batch_size, beam_size):
    """A function that translates a text."""
    translator = Translator.load(run)
    lines = [line for line in read_lines(source) if line.strip()]
    return lambda: translator.translate(lines, beam_size=beam_size, batch_size=batch_size)


def kind(name):
    """The name of an operation without what tells it from others of its kind."""
    return re.sub(r"[._]?\d+(?=[._]|$)", "", name)


def operations(space):
    """Milliseconds and number of the operations of XLA in a profile, by kind.

    Args:
        space: `XSpace`, as the profiler writes it.
    """
    milliseconds, counts = collections.Counter(), collections.Counter()
    for plane in space.planes:
        names = {key: each.name for key, each in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                if not any(names[stat.metadata_id] == "hlo_op" for stat in event.stats):
                    continue
                found = kind(plane.event_metadata[event.metadata_id].name)
                if found not in OUTER:
                    milliseconds[found] += event.duration_ps / 1e9
                    counts[found] += 1
    return milliseconds, counts


def watched(call):
    """Seconds of a call, and the profile of it."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            seconds = timed(call)
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        return seconds, xplane_pb2.XSpace.FromString(path.read_bytes())


def timed(call):
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def matrix_product():
    """A function that multiplies two float32 matrices, and its floating-point operations."""
    import tensorflow as tf

    left, right = (tf.random.normal((MATRIX_SIZE, MATRIX_SIZE)) for _ in range(2))
    return lambda: (left @ right).numpy(), 2 * MATRIX_SIZE**3


def multiply_adds(config, batch, beams, source_length, steps):
    """Multiply-adds of the matrix products that a forced search needs, two operations each.

    The encoder and the projection of its output to keys and values count once a sentence, a
    step once for each hypothesis; step `t` attends to `t` tokens. Padding, and what attention
    computes and then masks, do not count: this is the work, not what an engine makes of it.
    """
    width, source = config.model_dim, source_length
    square, feed_forward = width**2, 2 * width * config.intermediate_dim
    # Query, key, value and output of each token; scores and weighted sums of each pair.
    encoder_block = source * (4 * square + feed_forward) + 2 * source**2 * width
    cross_key_value = 2 * source * square
    # Self-attention as above; of cross-attention the query and the output.
    step_of_block = 6 * square + feed_forward + 2 * source * width
    pairs = steps * (steps + 1) // 2
    decoder_block = steps * step_of_block + 2 * pairs * width
    logits = steps * width * config.output_vocabulary_size
    once = config.num_encoder_layers * encoder_block + config.num_decoder_layers * cross_key_value
    each_beam = config.num_decoder_layers * decoder_block + logits
    return batch * (once + beams * each_beam)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode_profile", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--preset", default="transformer_base")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--model", metavar="RUN", help="with --source")
    parser.add_argument("--source", metavar="FILE", help="with --model")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if (options.model is None) != (options.source is None):
        parser.error("--model and --source go together")
    use_threads(options.threads)
    sizes = options.batch_size, options.beam_size
    if options.model is None:
        call, work = forced(options.preset, options.vocabulary_size, *sizes)
    else:
        call, work = text(options.model, options.source, *sizes), None
    product, operations_of_product = matrix_product()
    for _ in range(3):  # compiles, warms up
        call()
        product()
    rate = operations_of_product / min(timed(product) for _ in range(20)) / 1e9
    seconds = timed(call)
    watched_seconds, space = watched(call)
    milliseconds, counts = operations(space)
    of_all_threads = 1e3 * watched_seconds * options.threads
    report = {
        "machine": machine(),
        "threads": options.threads,
        "matrix_product_gflops_per_second": round(rate, 1),
        "share_of_matrix_product": work and round(work / seconds / rate / 1e9, 3),
        "milliseconds": round(1e3 * seconds, 1),
        "milliseconds_watched": round(1e3 * watched_seconds, 1),
        "thread_milliseconds": {
            "of_all_threads": round(of_all_threads, 1),
            "not_in_an_operation": round(of_all_threads - milliseconds.total(), 1),
        },
        "operations": {
            name: {"milliseconds": round(each, 2), "times": counts[name]}
            for name, each in milliseconds.most_common()
        },
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
