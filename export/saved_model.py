"""Exports a run as a SavedModel, and translates with TensorFlow alone.

    python export/saved_model.py write RUN FOLDER
    python export/saved_model.py translate FOLDER "A text." "Another text."

`write` needs keras_transformer. `translate` needs only `pip install tensorflow tensorflow-text`.
"""

import sys


def write(run, folder):
    from keras_transformer.export import export_run

    # A new process loads the SavedModel with TensorFlow alone. Only if its translations agree with
    # those of the run does the folder get its name. The default signature is beam search.
    report = export_run(run, folder, "saved_model", signatures=["greedy", "score"])
    print(report.summary())


def translate(folder, texts):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (registers the operations of the tokenizer)

    # The signatures need the model, so it must stay alive as long as they are called.
    model = tf.saved_model.load(folder)
    results = model.signatures["serving_default"](text=tf.constant(texts))
    # One call may have any number of texts. XLA compiles the search at the first call of each
    # padded shape, so send typical texts before the first user comes.
    for translation, score in zip(results["translation"].numpy(), results["score"], strict=True):
        print(f"{score:.3f}  {translation.decode('utf-8')}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", run, folder]:
            write(run, folder)
        case ["translate", folder, *texts] if texts:
            translate(folder, texts)
        case _:
            sys.exit(__doc__)
