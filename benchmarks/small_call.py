"""What a call of a SavedModel costs beside its compiled program, for one sentence.

    python -m benchmarks.small_call EXPORT --text "Two dogs play in the snow with a red ball ."

A signature is called again and again in a session, without a trace and in turns with one. The
compiled program is one operation: a trace says how long it takes, and delays it little. What a
call without a trace takes longer is tokenizer, sorting, padding, choice of the program and the
session. JSON on stdout: medians in milliseconds, and the slowest operations outside the program.
"""

import argparse
import json
import os
import statistics
import time

# What TensorFlow names the call of a program in the loop over chunks.
_PROGRAM = "while/StatefulPartitionedCall"


def _load(folder):
    """A session, and its signatures."""
    import tensorflow as tf

    from keras_transformer.engine.compilation_cache import enable_compilation_cache
    from keras_transformer.engine.saved_model import operations_library

    enable_compilation_cache()
    tf.load_op_library(operations_library())
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)
    return session, meta.signature_def


def measure(folder, text, signature="greedy", rounds=30):
    """A dict fit for JSON: medians of the rounds."""
    import tensorflow as tf

    session, signatures = _load(folder)
    outputs = {key: each.name for key, each in signatures[signature].outputs.items()}
    given = {signatures[signature].inputs["text"].name: [text.encode("utf-8")]}
    traced = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    calls, programs, others = [], [], {}
    for index in range(rounds + 5):
        for _ in range(10):  # The first ones after a trace are slower.
            started = time.perf_counter()
            session.run(outputs, given)
            seconds = time.perf_counter() - started
        found = tf.compat.v1.RunMetadata()
        session.run(outputs, given, options=traced, run_metadata=found)
        if index < 5:
            continue
        calls.append(1000 * seconds)
        nodes = [node for device in found.step_stats.dev_stats for node in device.node_stats]
        each = {x.node_name: (x.op_end_rel_micros - x.op_start_rel_micros) / 1000 for x in nodes}
        programs.append(max(ms for name, ms in each.items() if name.endswith(_PROGRAM)))
        for name, ms in each.items():
            if "PartitionedCall" not in name:
                others.setdefault(name, []).append(ms)
    slowest = {name: round(statistics.median(ms), 3) for name, ms in others.items()}
    call, program = statistics.median(calls), statistics.median(programs)
    return {
        "signature": signature,
        "call": round(call, 2),
        "program": round(program, 2),
        "beside": round(call - program, 2),
        "operations": len(each),
        "slowest": dict(sorted(slowest.items(), key=lambda item: -item[1])[:8]),
    }


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.small_call", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", help="an export as SavedModel")
    parser.add_argument("--text", required=True)
    parser.add_argument("--signature", default="greedy")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps(measure(**vars(options)), indent=2))


if __name__ == "__main__":
    main()
