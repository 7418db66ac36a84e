"""What is done with a finished run: evaluate it, export it."""

import pathlib

from keras_transformer.data import read_lines, read_pairs
from keras_transformer.errors import InputError
from keras_transformer.files import write_whole
from keras_transformer.training import RunFolder, evaluate
from keras_transformer.translator import Translator

_VERIFICATION_SENTENCES = 300


def evaluate_model(model, source, reference, save=None, **options):
    """Translates a file and scores the translations.

    Args:
        model: Path of a run folder or an export.
        source: Path of the source text, UTF-8, plain or `.gz`.
        reference: Path of its translation, aligned line by line.
        save: Path to write the translations to.
        **options: As `Translator.translate`.

    Returns:
        The dict of `evaluate`.

    Raises:
        InputError: A file or the model is not what it must be.
    """
    sources, references = read_pairs(source, reference)
    translations = Translator.load(model).translate(sources, **options)
    texts = [translation.text for translation in translations]
    if save is not None:
        try:
            write_whole(pathlib.Path(save), "".join(text + "\n" for text in texts))
        except OSError as error:
            raise InputError(f"{save}: cannot be written: {error.strerror}.") from None
    return evaluate(texts, references)


def export_run(
    run,
    output,
    beam_size=None,
    length_penalty=None,
    verify_with=None,
    overwrite=False,
    signatures=None,
):
    """Exports a run folder as a verified SavedModel.

    Args:
        run: Path of the run folder.
        output: Path of the folder to make.
        beam_size: The recipe's by default.
        length_penalty: The recipe's by default.
        verify_with: Path of a source text to compare with the model on; by default the run's
            validation text, where it is still at its place.
        overwrite: Replace an export that is there.
        signatures: Names of the signatures; all by default.

    Returns:
        A dict fit for JSON: what was exported and what the verification found.

    Raises:
        InputError: The run or an option is not what it must be.
    """
    from keras_transformer.export import export_saved_model

    folder = RunFolder.existing(run)
    recipe = folder.recipe()
    beam_size = recipe.decoding.beam_size if beam_size is None else beam_size
    if length_penalty is None:
        length_penalty = recipe.decoding.length_penalty
    report = export_saved_model(
        folder.engine(),
        output,
        beam_size=beam_size,
        length_penalty=length_penalty,
        verification_texts=_verification_texts(recipe, verify_with),
        overwrite=overwrite,
        **({} if signatures is None else {"signatures": signatures}),
    )
    return {
        "output": report.folder,
        "seconds": round(report.seconds, 1),
        "verification": report.verification,
    }


def export_litert(run, output, verify_with=None, overwrite=False, **options):
    """Exports a run folder as verified LiteRT files.

    Args:
        run: Path of the run folder.
        output: Path of the folder to make.
        verify_with: As in `export_run`.
        overwrite: Replace an export that is there.
        **options: As `export.export_litert`; beam size and length penalty are the recipe's by
            default.

    Returns:
        A dict fit for JSON: what was exported and what the verification found.

    Raises:
        InputError: The run or an option is not what it must be, or the extra `litert` is not
            installed.
    """
    from keras_transformer.export import export_litert

    folder = RunFolder.existing(run)
    recipe = folder.recipe()
    defaults = {
        "beam_size": recipe.decoding.beam_size,
        "length_penalty": recipe.decoding.length_penalty,
    }
    try:
        report = export_litert(
            folder.engine(),
            output,
            verification_texts=_verification_texts(recipe, verify_with),
            overwrite=overwrite,
            **{**defaults, **options},
        )
    except ImportError as error:
        raise InputError(f"{error}") from error
    return {
        "output": report.folder,
        "seconds": round(report.seconds, 1),
        "files": report.manifest["files"],
        "verification": report.verification,
    }


def export_ctranslate2(run, output, verify_with=None, overwrite=False):
    """Exports a run folder as a CTranslate2 model with its tokenizers.

    The folder can be used alone: `model.bin` and the vocabularies are what
    `ctranslate2.Translator` reads, the SentencePiece models have the names that the run gives
    them, `README.md` shows both together.

    Args:
        run: Path of the run folder.
        output: Path of the folder to make.
        verify_with: As in `export_run`.
        overwrite: Replace an export that is there.

    Returns:
        A dict fit for JSON: what was exported and what the verification found.

    Raises:
        InputError: The run is not what it must be, has something that CTranslate2 does not, or
            the extra `peers` is not installed.
    """
    from keras_transformer.export.ctranslate2 import export_ctranslate2

    folder = RunFolder.existing(run)
    texts = _verification_texts(folder.recipe(), verify_with)
    try:
        return export_ctranslate2(
            folder.engine(), output, overwrite=overwrite, verification_texts=texts
        )
    except ImportError as error:
        raise InputError(f"{error}") from error


def _verification_texts(recipe, verify_with):
    if verify_with is not None:
        return read_lines(verify_with)[:_VERIFICATION_SENTENCES]
    files = recipe.data.validation
    folder = pathlib.Path(recipe.data.folder)
    if not (folder / files.source).is_file():
        return None  # the export then makes texts up from the vocabulary
    target = None if files.target is None else folder / files.target
    return read_pairs(folder / files.source, target)[0][:_VERIFICATION_SENTENCES]
