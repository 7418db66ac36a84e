"""Scoring a file of given translations."""

from keras_transformer.streaming.chunks import chunk_size, each_line
from keras_transformer.streaming.forms import as_scored_json
from keras_transformer.streaming.progress import Progress
from keras_transformer.streaming.reader import Line


def score_lines(translator, source, target, output, batch_size=32, progress=None, **options):
    """Writes a JSON object for each pair of aligned files, with the model's probabilities.

    Args:
        translator: `Translator` of a run folder.
        source: Path of the source text.
        target: Path of its translation.
        output: Text stream.
        batch_size: As `Translator.score` takes it.
        progress: `Progress`, with as many bytes as `source` has.
        **options: As `Translator.score` takes them.

    Raises:
        InputError: A file or an option is not what it must be, or a line is too long.
    """
    from keras_transformer.data import read_pairs

    translator.score([], [], batch_size=batch_size, **options)
    progress = Progress(shown=False) if progress is None else progress
    pairs = [
        (Line(number, source_text, len(source_text.encode()) + 1), target_text)
        for number, (source_text, target_text) in enumerate(
            zip(*read_pairs(source, target), strict=True), start=1
        )
    ]

    def score(pairs):
        sources, targets = [line.text for line, _ in pairs], [text for _, text in pairs]
        return translator.score(sources, targets, batch_size=batch_size, **options)

    most = chunk_size(batch_size)
    for start in range(0, len(pairs), most):
        chunk = pairs[start : start + most]
        name = f"{source} and {target}"
        found = each_line(score, chunk, lambda pair: pair[0].number, name, progress.log)
        for pair, scored in found:
            progress.clear()
            output.write(as_scored_json(pair, scored))
        output.flush()
        progress.advance([line for line, _ in chunk])
