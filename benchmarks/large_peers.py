"""Translates ten sentences with a large model in another program; `benchmarks.large` measures it.

python -m benchmarks.large_peers transformers MODEL --longest 24
python -m benchmarks.large_peers ctranslate2 EXPORT --longest 24

The search is that of `benchmarks.large`: beam 4, and random weights that end no translation.
"""

import pathlib
from collections.abc import Sequence

from benchmarks import command_line
from keras_transformer.errors import require

SENTENCES, SOURCE_TOKENS, BEAM_SIZE = 10, 14, 4
_THREADS = 2


def transformers(folder: pathlib.Path, /, longest: int = 24) -> dict[str, int]:
    """Translates with transformers on PyTorch, in float32.

    Args:
        folder: Folder of the model, as `benchmarks.large` made it.
        longest: Tokens of each translation.
    """
    torch = require("torch", "a comparison with transformers", "peers")
    library = require("transformers", "a comparison with transformers", "peers")
    torch.set_num_threads(_THREADS)
    model = library.M2M100ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    vocabulary_size, end = model.config.vocab_size, model.config.eos_token_id
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, vocabulary_size, (SENTENCES, SOURCE_TOKENS), generator=generator)
    ids[:, -1] = end
    with torch.inference_mode():
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=BEAM_SIZE,
            max_new_tokens=longest,
            max_length=None,
            forced_bos_token_id=vocabulary_size - 1,
        )
    return {"translations": len(made), "tokens": int(made.shape[1])}


def ctranslate2(folder: pathlib.Path, /, longest: int = 24) -> dict[str, int]:
    """Translates with CTranslate2, from an export that this package wrote.

    Args:
        folder: Folder of the export.
        longest: Tokens of each translation.
    """
    library = require("ctranslate2", "a comparison with CTranslate2", "ctranslate2")
    (model_file,) = folder.rglob("model.bin")
    model = library.Translator(str(model_file.parent), inter_threads=1, intra_threads=_THREADS)
    piece = "▁dog"
    sources = [[*[piece] * (SOURCE_TOKENS - 1), "</s>"]] * SENTENCES
    results = model.translate_batch(sources, beam_size=BEAM_SIZE, max_decoding_length=longest)
    return {"translations": len(results), "tokens": max(len(r.hypotheses[0]) for r in results)}


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(transformers, ctranslate2, arguments=arguments)


if __name__ == "__main__":
    main()
