"""Parallel text from two aligned files or from one of two columns."""

from keras_transformer.errors import InputError
from keras_transformer.files import read_lines


def read_pairs(source, target=None):
    """Parallel text from two aligned files or from one file of two tab-separated columns.

    Args:
        source: Path of the source lines, or of the two-column file when `target` is None.
        target: Path of the target lines, as many as `source` has.

    Returns:
        `(source_lines, target_lines)`, two lists of one length.

    Raises:
        InputError: As `read_lines`; the line counts differ; or a line of the two-column file
            does not have exactly two columns.
    """
    if target is None:
        return _read_columns(source)
    source_lines, target_lines = read_lines(source), read_lines(target)
    if len(source_lines) != len(target_lines):
        raise InputError(
            "Aligned files must have the same number of lines. Received: "
            f"{source} with {len(source_lines)} lines, {target} with {len(target_lines)} lines."
        )
    return source_lines, target_lines


def _read_columns(path):
    rows = [line.split("\t") for line in read_lines(path)]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise InputError(
                f"{path}, line {number}: expected exactly two columns, source and target, "
                f"with one tab between them. Received: columns={len(row)}."
            )
    return [row[0] for row in rows], [row[1] for row in rows]
