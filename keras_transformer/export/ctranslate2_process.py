"""Translates with a CTranslate2 export where neither TensorFlow, Keras nor this package is.

Run by its path, `python -P ctranslate2_process.py FOLDER REQUEST ANSWER`. REQUEST is a JSON file
with `texts`, `beam_sizes` and `max_length`. ANSWER gets for each size a dict of `pieces` and
`translations`, an element for each text, and `seconds`.
"""

import json
import os
import sys
import time

FOREIGN = ("tensorflow", "keras", "tf_keras", "tensorflow_text", "keras_transformer")
sys.modules.update(dict.fromkeys(FOREIGN))

import ctranslate2  # noqa: E402
import sentencepiece  # noqa: E402


def main(folder, request_path, answer_path):
    with open(os.path.join(folder, "export.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    source, target = (
        sentencepiece.SentencePieceProcessor(os.path.join(folder, manifest[name]))
        for name in ("source_tokenizer", "target_tokenizer")
    )
    translator = ctranslate2.Translator(folder, compute_type="float32", intra_threads=2)
    most = manifest["max_source_length"] - 1  # and the end of the sentence
    sources = [pieces[:most] for pieces in source.encode(request["texts"], out_type=str)]
    answers = []
    for beam_size in request["beam_sizes"]:
        start = time.perf_counter()
        results = translator.translate_batch(
            sources,
            beam_size=beam_size,
            # No other is defined as the live model's is.
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=request["max_length"],
            # What the live model never chooses: padding and the beginning.
            suppress_sequences=[[target.id_to_piece(id)] for id in (0, 1)],
            max_batch_size=32,
        )
        pieces = [result.hypotheses[0] for result in results]
        answers.append(
            {
                "pieces": pieces,
                "translations": [target.decode(each) for each in pieces],
                "seconds": round(time.perf_counter() - start, 3),
            }
        )
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
