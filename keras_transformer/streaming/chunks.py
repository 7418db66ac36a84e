"""A function of many lines at once, with results and messages for each line."""

import contextlib
import re
import warnings

from keras_transformer.errors import InputError

_LINES_AT_ONCE = 1024
# How the engine names a text of the list that it was given.
_PLACE = re.compile(r",? (text|prefix) 1\b")


def chunk_size(batch_size):
    """Lines to wait for: many, as they are sorted by length, and whole batches of them."""
    return batch_size * max(1, _LINES_AT_ONCE // batch_size)


def each_line(function, items, number_of, name, log):
    """Calls a function of a list, and finds the line at fault where it refuses the list.

    Args:
        function: From a list of items to as many results; refuses with an `InputError`, at once.
        items: A list.
        number_of: From an item to the number of its line.
        name: What messages call the file of the lines.
        log: Called with each warning of `function`, as one line.

    Yields:
        `(item, result)` in order.

    Raises:
        InputError: As `function`, with the number of the line. The lines before it have been
            given.
    """
    first, last = number_of(items[0]), number_of(items[-1])
    where = f"{name}, line {first}" if first == last else f"{name}, lines {first} to {last}"
    try:
        with _warnings_told(where, log):
            results = function(items)
    except InputError as error:
        if len(items) == 1:
            raise InputError(f"{where}: {_PLACE.sub('', str(error))}") from None
        # Refusing costs nothing, so what has been translated on the way is all of use.
        half = len(items) // 2
        yield from each_line(function, items[:half], number_of, name, log)
        yield from each_line(function, items[half:], number_of, name, log)
        return
    yield from zip(items, results, strict=True)


@contextlib.contextmanager
def _warnings_told(where, log):
    with warnings.catch_warnings(record=True) as caught:
        # The same again for other lines is no repetition.
        warnings.simplefilter("always", UserWarning)
        yield
    for each in caught:
        log(f"{where}: {' '.join(str(each.message).split())}")
