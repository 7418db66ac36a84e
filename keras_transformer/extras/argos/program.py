"""Runs a package of Argos Translate as Argos does, in a process without `keras_transformer`."""


def open_package(package, limits):
    """Loads an unpacked package of Argos Translate.

    Returns `translate(texts, beam_size, length_penalty)`, which returns a list of texts with their
    scores; `limits` are arguments of CTranslate2.
    """
    import ctranslate2
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=f"{package}/sentencepiece.model")
    translator = ctranslate2.Translator(f"{package}/model")

    def translate(texts, beam_size, length_penalty, **_):
        search_options = {"beam_size": beam_size, "length_penalty": length_penalty}
        results = translator.translate_batch(
            processor.encode(texts, out_type=str),
            replace_unknowns=True,
            return_scores=True,
            **search_options,
            **limits,
        )
        return [(processor.decode(result.hypotheses[0]), result.scores[0]) for result in results]

    return translate
