"""Lines of a text: the loop that names the line at fault, for commands and for bulk."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from keras_transformer.base.errors import InputError, print_message


class Line(NamedTuple):
    """A line of a text.

    Attributes:
        number: Its number, counted from 1.
        text: Its text, without the line end.
        size: Number of its bytes, with the line end.
        target: Its target: the text to score, or the prefix of its translation.
        end: Its line end: `"\n"`, or `"\r\n"`.
    """

    number: int
    text: str
    size: int
    target: str | None = None
    end: str = "\n"


def translated_lines(
    function: Callable[[list[Line]], Sequence],
    lines: list[Line],
    name: str,
    report: Callable[[str], object] = print_message,
) -> Iterator[tuple[list[Line], Sequence]]:
    """Yields the lines up to the line at fault with their results, then raises its error.

    Args:
        function: Returns one result per line. It raises an `InputError` before it starts.
        lines: At least one line.
        name: Name of the lines' file in messages.
        report: Function that is called with each of the warnings.
    """
    first, last = lines[0].number, lines[-1].number
    where = f"{name}, line {first}" if first == last else f"{name}, lines {first} to {last}"
    try:
        with warnings.catch_warnings(record=True) as caught:
            # A warning for other lines is not a repetition.
            warnings.simplefilter("always", UserWarning)
            results = function(lines)
    except InputError as error:
        if error.index is None:
            raise InputError(f"{where}: {error}") from None
        if error.index:
            yield from translated_lines(function, lines[: error.index], name, report)
        number = lines[error.index].number
        raise InputError(f"{name}, line {number}: {error.message}") from None
    for warning in caught:
        report(f"{where}: {warning.message}")
    yield lines, results
