"""CTranslate2 with the same weights, in float32 and in int8."""

import tempfile

from keras_transformer.export.ctranslate2 import convert_to_ctranslate2


class CTranslate2Float32:
    """CTranslate2 on a conversion of the model.

    Args:
        model: `Transformer`.
        threads: Threads in all: of one batch (`intra_threads`), or with `text_engine` one for
            each of as many batches (`inter_threads`).
        text_engine: `ModelEngine` with the same model, whose tokenizers and limits
            `translate_corpus` uses.

    Raises:
        ImportError: `ctranslate2` is not installed.
        InputError: The model has something that CTranslate2 does not.
    """

    name = "ctranslate2"
    package = "ctranslate2"
    distribution = "ctranslate2"
    extra = "peers"
    compute_type = "float32"
    in_parts = False  # whether a forced batch is cut in as many parts as there are threads
    note = (
        "the same weights; its length penalty divides by length^a, ours by ((5 + length) / 6)^a, "
        "and with a penalty it stops once `beam_size` hypotheses have ended, ours when none that "
        "still grows can win: whole-corpus translations may differ"
    )

    def __init__(self, model, threads=2, text_engine=None):
        try:
            import ctranslate2
        except ImportError as error:
            raise ImportError(
                'CTranslate2 is needed: pip install "keras_transformer[peers]".'
            ) from error
        self._text_engine = text_engine
        if text_engine is None:
            source_pieces = _made_up_pieces(model.config.vocabulary_size)
            target_pieces = _made_up_pieces(model.config.output_vocabulary_size)
        else:
            self._source_processor = _processor(text_engine.source_tokenizer)
            self._target_processor = _processor(text_engine.target_tokenizer)
            source_pieces = _pieces(self._source_processor)
            target_pieces = _pieces(self._target_processor)
        self._source_pieces = source_pieces
        self._target_ids = {piece: i for i, piece in enumerate(target_pieces)}
        self._parts = threads if self.in_parts else 1
        with tempfile.TemporaryDirectory() as folder:
            convert_to_ctranslate2(model, source_pieces, target_pieces, folder)
            # Many batches are fastest with a thread for each.
            many = self.in_parts or text_engine is not None
            batches, threads_each = (threads, 1) if many else (1, threads)
            self._translator = ctranslate2.Translator(
                folder,
                device="cpu",
                compute_type=self.compute_type,
                inter_threads=batches,
                intra_threads=threads_each,
            )

    def translate(self, source_ids, beam_size, steps):
        """Forces `steps` steps, as `Ours.translate`: below the least length no end is chosen."""
        sentences = [[self._source_pieces[i] for i in ids[:-1]] for ids in source_ids]
        results = self._translator.translate_batch(
            sentences,
            beam_size=beam_size,
            min_decoding_length=steps,
            max_decoding_length=steps,
            max_input_length=0,
            max_batch_size=-(-len(sentences) // self._parts),
        )
        return [[self._target_ids[piece] for piece in each.hypotheses[0]] for each in results]

    def translate_corpus(self, sentences, beam_size, length_penalty, batch_size):
        """Translates texts to texts; tokenizing and detokenizing included, as in ours."""
        results = self._translator.translate_batch(
            self._source_processor.encode(sentences, out_type=str),
            beam_size=beam_size,
            length_penalty=length_penalty,
            max_batch_size=batch_size,  # It sorts by length what is more than one batch.
            max_input_length=self._text_engine.max_source_length,
            max_decoding_length=self._text_engine.max_target_length,
        )
        return self._target_processor.decode([each.hypotheses[0] for each in results])


class CTranslate2InParts(CTranslate2Float32):
    """The same with a batch cut into one part for each thread."""

    name = "ctranslate2_in_parts"
    in_parts = True
    note = "each batch as several, one for each thread, which work on their own"


class CTranslate2Int8(CTranslate2Float32):
    """The same with weights and activations of the products in int8."""

    name = "ctranslate2_int8"
    compute_type = "int8"
    note = "weights and activations of the products in int8: not the same arithmetic as ours"


def _made_up_pieces(size):
    return ["<pad>", "<s>", "</s>", "<unk>", *(f"p{i}" for i in range(4, size))]


def _processor(tokenizer):
    # SentencePiece's own: it gives pieces for a whole list at once.
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)


def _pieces(processor):
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
