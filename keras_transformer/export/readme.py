"""The `README.md` of an export: how to load it, and what is fixed in it."""

_MEANINGS = {
    "serving_default": "the best translation by beam search, and its score",
    "greedy": "the same by greedy search",
    "beam": 'all hypotheses of the beam, best first; missing ones are "" and -inf',
    "sample": "a sample; the same text and seed give the same sample in any batch",
    "score": "how probable given translations are",
    "align": "the best translation with its tokens, and what each attended to in the source",
    "serving_ids": "ids to ids, the source's end (2) included, padded with 0",
}

_END = """
Made with {versions}. `export.json` holds all this for programs, `verification.json` how the answers
compared with the live model's.
"""


_WHOLE_WORDS = """
The tokens of a source are whole words. SentencePiece alone cuts an unknown word in two; make one
`<unk>` (id 3) of both, in the ids of `source.encode(text)`:

```python
ids = [3 if after == 3 else i for i, after in zip(ids, [*ids[1:], 2]) if i != 3]
pieces = source.id_to_piece(ids)  # for CTranslate2
```
"""


def readme(manifest: dict) -> str:
    """The text for a manifest, the content of the folder's `export.json`."""
    # For each format its template, and what the template has beside the manifest's values.
    make = {
        "saved_model": _saved_model,
        "litert": _litert,
        "ctranslate2": lambda values: (_CTRANSLATE2, {}),
        "web": _web,
        "classifier": _classifier,
    }
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    template, more = make[manifest["format"].split(".")[1]](manifest)
    text = template.format(**{**manifest, "versions": versions, **more})
    return text + _WHOLE_WORDS * manifest.get("whole_words", False)


def _saved_model(values):
    signatures, shapes = values["signatures"], values["shapes"]
    rows = [
        f"| `{name}` | {_described(each['inputs'])} | {_described(each['outputs'])} "
        f"| {_MEANINGS[name]} |"
        for name, each in signatures.items()
    ]
    operations = [
        f"| `{name}` | {', '.join(f'`{op}`' for op in each['custom_ops']) or 'none'} |"
        for name, each in signatures.items()
    ]
    return _SAVED_MODEL + _END, {
        "signatures": "\n".join(rows),
        "operations": "\n".join(operations),
        "rows": ", ".join(map(str, shapes["rows"])),
        "lengths": ", ".join(map(str, shapes["source_lengths"])),
        "ids": _IDS if "serving_ids" in signatures else "",
    }


def _described(specs):
    def sizes(spec):
        return ", ".join("·" if size is None else str(size) for size in spec["shape"])

    return ", ".join(f"`{name}` {spec['dtype']} [{sizes(spec)}]" for name, spec in specs.items())


def _litert(values):
    files = [
        f"| `{name}` | {each['bytes']:,} | {', '.join(each['custom_operations']) or 'none'} |"
        for name, each in values["files"].items()
    ]
    return _LITERT + _END, {
        "files": "\n".join(files),
        "lengths": ", ".join(map(str, values["source_lengths"])),
        "length": values["source_lengths"][-1],
        "all_searches": " and ".join(f"`{name}`" for name in values["searches"]),
    }


def _web(values):
    large = sorted(values["files"].items(), key=lambda item: -item[1]["bytes"])
    files = [f"| `{name}` | {each['bytes']:,} |" for name, each in large if each["bytes"] > 20_000]
    npm = ", ".join(f"`{name}` {version}" for name, version in values["npm"].items())
    more = {"files": "\n".join(files), "npm": npm, "length": values["source_lengths"][-1]}
    return _WEB + _END, more


def _classifier(values):
    labels = [f"`{label}`" for label in values["labels"]]
    load = _LOAD_LITERT if values["runtime"] == "litert" else _LOAD_SAVED_MODEL
    return _CLASSIFIER + _END, {"load": load, "labels": ", ".join(labels)}


_LOAD_SAVED_MODEL = """\
import tensorflow as tf
import tensorflow_text  # registers the tokenizer's operations

classify = tf.saved_model.load(".").signatures["serving_default"]  # this folder
result = classify(text=tf.constant(["A text."]))\
"""

_LOAD_LITERT = """\
import numpy as np
from ai_edge_litert.interpreter import InterpreterWithCustomOps
from tensorflow_text.core.pybinds import tflite_registrar

operations = [tflite_registrar.AddFastSentencepieceTokenize]
interpreter = InterpreterWithCustomOps(operations, "model.tflite", num_threads=2)
result = interpreter.get_signature_runner()(text=np.array(["A text.".encode()], dtype=object))\
"""

_CLASSIFIER = """\
# A classifier

Text in, label out: the tokenizer is inside.

```python
{load}
print(result["label"], result["probabilities"])
```

`text` is any number of UTF-8 strings; `label` has a string for each and `probabilities` a row of
numbers in the order of the labels: {labels}. A blank text gives "" and 0; one of more than
{max_source_length} tokens, its end included, is cut there.
"""

_IDS = """
`ids/` is the signature `serving_ids` as a SavedModel of its own, with the same weights, for servers
without these operations: TensorFlow refuses a graph that holds an unknown operation, whichever
signature is asked for. The tokenizer models beside it are read by SentencePiece; append the end,
id 2.
"""

_SAVED_MODEL = """\
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
a blank one gives "" and 0. A score is the log-probability over the length penalty, of a language
model both of what follows the text that was given. A conversation that is too long loses its
oldest turns.

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
{ids}"""

_LITERT = """\
# A translator for LiteRT

Ids to ids, with `pip install ai-edge-litert sentencepiece` alone:

```python
import numpy as np
import sentencepiece
from ai_edge_litert.interpreter import Interpreter

source = sentencepiece.SentencePieceProcessor("{source_tokenizer}")
target = sentencepiece.SentencePieceProcessor("{target_tokenizer}")
translate = Interpreter("model_ids.tflite", num_threads=2).get_signature_runner("greedy_{length}")

source_ids = np.zeros((1, {length}), "int32")  # any number of rows, padded with 0
ids = source.encode("A text.") + [2]  # the end of the sentence
source_ids[0, : len(ids)] = ids
found = translate(source_ids=source_ids)
print(target.decode([i for i in found["ids"][0].tolist() if i > 2]), found["score"][0])
```

| file | bytes | operations that LiteRT does not bring |
|---|---|---|
{files}

| signature | in | out |
|---|---|---|
| `greedy_L` (ids) | `source_ids` `[b, L]` | `ids` `[b, t]`, `score` and `log_probability` `[b]` |
| `beam_L` (ids) | `source_ids` `[b, L]` | `ids` `[b, n, t]`, `score`, `log_probability` `[b, n]` |
| `greedy` (text) | `text` `[b]` | `translation` and `score` `[b]` |
| `beam` (text) | `text` `[b]` | `translation` and `score` `[b, n]` |

Ids are int32, texts UTF-8 strings, numbers float32; a place without a hypothesis has the score
-inf. L is one of {lengths}: take the smallest that the longest source fits in.
Searches in these files: {all_searches}.
An interpreter prepares all signatures of its file: where memory is scarce, export one length.

| fixed here | value |
|---|---|
| weights | {quantize} |
| beam size, hypotheses returned | {beam_size}, {n_best} |
| length penalty | {length_penalty} |
| most tokens of a source | {max_source_length}, its end included; a longer text is cut there |
| most tokens of a translation | {max_target_length} |
"""

_CTRANSLATE2 = """\
# A translator for CTranslate2

```python
import ctranslate2
import sentencepiece

folder = "."  # this folder
translator = ctranslate2.Translator(folder, compute_type="float32")
source = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{source_tokenizer}")
target = sentencepiece.SentencePieceProcessor(model_file=f"{{folder}}/{target_tokenizer}")

pieces = source.encode(["A text."], out_type=str)
results = translator.translate_batch(
    pieces,
    beam_size=4,
    patience=2,
    max_input_length={max_source_length},
    max_decoding_length={max_target_length},
)
print([target.decode(result.hypotheses[0]) for result in results])
```

The end of the source is added by CTranslate2. Its beam search has another length penalty than that
of keras_transformer: translations may differ where two are nearly as probable. And it stops when
`beam_size * patience` translations have ended, although a far more probable one may still be
growing, which `patience=1`, the default there, does lose now and then.
`export.json` holds the sizes and versions for programs.
"""

_WEB = """\
# A translator for browsers

Any static file server serves this folder; nothing is fetched from elsewhere, and no text is sent:

```bash
python -m http.server --bind 127.0.0.1 --directory . 8000  # http://localhost:8000
```

Over https (or on localhost) it works without a network after the first visit. Let the server
compress what it sends. Other pages on the same origin import it:

```js
import {{ load }} from "./translator.js";

const translator = await load();
const [{{ text }}] = await translator.translate(["A text."], {{ beamSize: 1 }});
```

Their content security policy must allow `script-src 'self' 'wasm-unsafe-eval'`. A text of more than
{length} tokens is split at its sentences.

| large file | bytes |
|---|---|
{files}

Of the two builds of LiteRT a browser loads one; it does not load `.model` files, which
`keras_transformer.Translator.load` reads: it translates with this folder, too.

| fixed here | value |
|---|---|
| weights | {quantize} |
| beam size, length penalty | {beam_size}, {length_penalty} |
| most tokens of a translation | {max_target_length} |

`litert/` and `tokenizers.js` are {npm}, Apache-2.0 (`LICENSE.txt`); in `litert/index.js` one import
names the file beside it.
"""
