"""What each translation must begin with, from a file aligned with the input."""

from keras_transformer.errors import InputError
from keras_transformer.streaming.reader import decode_line


def with_prefixes(chunks, path, name="stdin"):
    """Puts each line together with its target prefix, in constant memory.

    Args:
        chunks: Iterable of lists of `Line`.
        path: Path of a UTF-8 file with a line for each line of the input, a blank one where
            nothing is forced; or None.
        name: What messages call the input.

    Yields:
        Lists of `(line, prefix)`; the prefix is None without a file.

    Raises:
        InputError: The file cannot be read, does not have as many lines as the input, or is not
            UTF-8. Lines before such a place are given first.
    """
    if path is None:
        for lines in chunks:
            yield [(line, None) for line in lines]
        return
    with _opened(path) as file:
        number = 0
        for lines in chunks:
            pairs = []
            try:
                for line in lines:
                    number = line.number
                    pairs.append((line, _prefix(file, number, path, name)))
            except InputError:
                if pairs:
                    yield pairs
                raise
            yield pairs
        if file.readline():
            raise InputError(
                f"{path}: has a line {number + 1}, but {name} ended after line {number}: there "
                "must be a target prefix for each line."
            )


def _opened(path):
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None


def _prefix(file, number, path, name):
    content = file.readline()
    if not content:
        raise InputError(
            f"{path}: ends after line {number - 1}, but {name} has a line {number}: there must be "
            "a target prefix for each line."
        )
    return decode_line(content, number, path)
