"""The README that lies in an exported LiteRT folder."""


def readme(manifest):
    """The text for a manifest, the content of the folder's `export.json`."""
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    files = "\n".join(
        f"| `{name}` | {each['bytes']:,} | {', '.join(each['custom_operations']) or 'none'} |"
        for name, each in manifest["files"].items()
    )
    lengths = ", ".join(str(each) for each in manifest["source_lengths"])
    return _README.format(
        **{**manifest, "versions": versions, "files": files, "lengths": lengths},
        length=manifest["source_lengths"][-1],
        all_searches=" and ".join(f"`{name}`" for name in manifest["searches"]),
    )


_README = """\
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

Made with {versions}. `export.json` holds all this for programs, `verification.json` how the
translations compared with the live model's.
"""
