"""The README of an exported SavedModel."""

_MEANINGS = {
    "serving_default": "the best translation by beam search, and its score",
    "greedy": "the same by greedy search",
    "beam": 'all hypotheses of the beam, best first; missing ones are "" and -inf',
    "sample": "a sample; the same text and seed give the same sample in any batch",
    "score": "how probable given translations are",
    "align": "the best translation with its pieces, and what each attended to in the source",
    "serving_ids": "ids to ids, the source's end (2) included, padded with 0",
}


def readme_of(manifest):
    """The text of `README.md` from the content of `export.json`."""
    signatures, shapes = manifest["signatures"], manifest["shapes"]
    rows = [
        f"| `{name}` | {_described(each['inputs'])} | {_described(each['outputs'])} "
        f"| {_MEANINGS[name]} |"
        for name, each in signatures.items()
    ]
    operations = {
        name: ", ".join(f"`{op}`" for op in each["custom_ops"]) or "none"
        for name, each in signatures.items()
    }
    values = {
        **manifest,
        "signatures": "\n".join(rows),
        "operations": "\n".join(f"| `{name}` | {text} |" for name, text in operations.items()),
        "rows": ", ".join(map(str, shapes["rows"])),
        "lengths": ", ".join(map(str, shapes["source_lengths"])),
        "versions": ", ".join(f"{name} {each}" for name, each in manifest["versions"].items()),
        "ids": _IDS if "serving_ids" in signatures else "",
    }
    return _README.format(**values)


def _described(specs):
    return ", ".join(
        f"`{name}` {spec['dtype']} [{', '.join(_axis(size) for size in spec['shape'])}]"
        for name, spec in specs.items()
    )


def _axis(size):
    return "·" if size is None else str(size)


_IDS = """
`ids/` is the signature `serving_ids` as a SavedModel of its own, with the same weights, for servers
without these operations: TensorFlow refuses a graph that holds an unknown operation, whichever
signature is asked for. The tokenizer models beside it are read by SentencePiece; append the end,
id 2.
"""

_README = """\
# A translator as a SavedModel

Text in, text out: the tokenizers are inside. Load it with TensorFlow and tensorflow-text alone:

```python
import tensorflow as tf
import tensorflow_text  # registers the tokenizer's operations

model = tf.saved_model.load(".")  # this folder
result = model.signatures["serving_default"](text=tf.constant(["A text."]))
print(result["translation"].numpy()[0].decode("utf-8"), float(result["score"][0]))
```

| signature | inputs | outputs | what it gives |
|---|---|---|---|
{signatures}

The first axis is the batch: any number of sentences, none too. Texts are UTF-8, one sentence each;
a blank one gives "" and 0. A score is the log-probability over the length penalty.

| fixed here | value |
|---|---|
| beam size | {beam_size} |
| length penalty | {length_penalty} |
| most tokens of a source | {max_source_length}, its end included; a longer text is cut there |
| most tokens of a translation | {max_target_length} |
| sentences searched at once | {largest_chunk}; a larger batch is divided inside |
| vocabulary, source and target | {source_vocabulary_size} and {target_vocabulary_size} |
| sentences, padded to | {rows} |
| tokens, padded to | {lengths} |

The search is compiled by XLA, which must be allowed: `tensorflow_model_server` needs
`--xla_cpu_compilation_enabled=true`. The first request of a new padded shape waits for the
compiler; `assets.extra/tf_serving_warmup_requests` lets TensorFlow Serving compile the common ones
when it loads.

| signature | required operations beside TensorFlow's own |
|---|---|
{operations}

They are tensorflow-text's (`python/ops/_sentencepiece_tokenizer.so`).
{ids}
Made with {versions}.
`export.json` holds all this for programs, `verification.json` how the answers compared with the
live model's.
"""
