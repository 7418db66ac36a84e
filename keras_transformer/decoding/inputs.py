"""What an engine is given, checked and turned into ids: texts, prefixes, targets, seeds."""

import warnings

from keras_transformer.config import EOS_ID, UNK_ID
from keras_transformer.decoding.splitting import split_text
from keras_transformer.errors import InputError

LONG_INPUT = ("refuse", "split", "truncate")
"""What may be done with a text of more tokens than the model takes."""


def source_ids(texts, tokenizer, limit, long_input, stacklevel=4):
    """Ids of what is to be translated.

    Args:
        texts: A list of strings.
        tokenizer: The source's.
        limit: Most tokens of a source, its end included.
        long_input: One of `LONG_INPUT`: what happens to a longer text.
        stacklevel: Of the warning that texts were split or cut.

    Returns:
        A list of lists of ids, and for each text the list of the places of its parts there: none
        for a blank text (white space alone, or what the tokenizer takes no token from), several
        for one that was split.

    Raises:
        InputError: A text is too long and not to be split or cut, or cannot be split.
    """
    check_long_input(long_input)
    ids = tokenizer.tokenize(texts, add_eos=True)
    sources, parts, long = [], [[] for _ in texts], []
    for place, each in enumerate(ids):
        if each == [EOS_ID] or not texts[place].strip():
            continue
        pieces = [each]
        if len(each) > limit:
            long.append(place)
            if long_input == "refuse":
                raise InputError(
                    f"A text must have at most {limit} tokens; longer ones can be split "
                    f"(long_input='split'). Received: {len(each)} tokens, text {place + 1}: "
                    f"{texts[place][:40]!r}…"
                )
            pieces = _shortened(texts[place], each, tokenizer, limit, long_input)
        parts[place] = list(range(len(sources), len(sources) + len(pieces)))
        sources += pieces
    if long:
        done = "cut there" if long_input == "truncate" else "split at sentence ends"
        warnings.warn(
            f"{len(long)} of {len(texts)} texts are longer than {limit} tokens and were {done}.",
            stacklevel=stacklevel,
        )
    return sources, parts


def _shortened(text, ids, tokenizer, limit, long_input):
    if long_input == "truncate":
        return [[*ids[: limit - 1], EOS_ID]]

    def tokenize(part):
        return tokenizer.tokenize([part], add_eos=True)[0]

    parts = split_text(text, lambda part: len(tokenize(part)) <= limit)
    return [ids for ids in map(tokenize, parts) if ids != [EOS_ID]]


def prefix_ids(prefixes, count, tokenizer, limit):
    """Ids that each of `count` translations must begin with; `()` for nothing.

    Args:
        prefixes: A list of strings, or `None`.
        count: How many there must be.
        tokenizer: The target's.
        limit: Most tokens of a translation.

    Raises:
        InputError: There are not as many, or one is too long or has a character that the
            vocabulary lacks: forced, it would be the unknown token.
    """
    if prefixes is None:
        return [()] * count
    check_texts("target_prefixes", prefixes)
    if len(prefixes) != count:
        raise InputError(
            "There must be a target prefix for each text. "
            f"Received: {len(prefixes)} prefixes and {count} texts."
        )
    ids = tokenizer.tokenize(prefixes, add_eos=False)
    for place, each in enumerate(ids):
        if len(each) >= limit:
            raise InputError(
                f"A target prefix must have fewer tokens than a translation may, {limit}. "
                f"Received: {len(each)} tokens, prefix {place + 1}."
            )
        if UNK_ID in each:
            pieces = zip(each, tokenizer.pieces(prefixes[place]), strict=True)
            unknown = dict.fromkeys(c for id, piece in pieces if id == UNK_ID for c in piece)
            raise InputError(
                "A target prefix must have only characters of the target vocabulary. "
                f"Received: {', '.join(map(repr, unknown))} in {prefixes[place][:40]!r}, "
                f"prefix {place + 1}."
            )
    return ids


def ids_and_texts(name, given, tokenizer, limit):
    """Ids and texts of what is given as either.

    Args:
        name: Of the argument, for errors.
        given: A list of strings, or of lists of ids.
        tokenizer: Of that side.
        limit: Most tokens, the end included.
    """
    if given and not any(isinstance(each, str) for each in given):
        ids = [[int(each) for each in row] for row in given]
        texts = tokenizer.detokenize(ids)
    else:
        check_texts(name, given)
        ids, texts = tokenizer.tokenize(given, add_eos=True), given
    for place, each in enumerate(ids):
        if len(each) > limit:
            raise InputError(
                f"Each of `{name}` must have at most {limit} tokens. "
                f"Received: {len(each)} tokens, text {place + 1}: {texts[place][:40]!r}…"
            )
    return ids, texts


def one_for_each(name, value, count):
    """A list of `count` values from one value, or from a tuple of as many."""
    if not isinstance(value, tuple):
        return [value] * count
    if len(value) != count:
        raise InputError(
            f"There must be one `{name}`, or one for each text. "
            f"Received: {len(value)} for {count} texts."
        )
    return list(value)


def check_texts(name, texts):
    """Raises an `InputError` unless `texts` is a list of strings."""
    if isinstance(texts, str):
        raise InputError(f"`{name}` must be a list of strings. Received: one string.")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(
                f"`{name}` must be a list of strings. Received: one {type(text).__name__} in it."
            )


def check_long_input(value):
    """Raises an `InputError` unless `value` is one of `LONG_INPUT`."""
    if value not in LONG_INPUT:
        raise InputError(
            f"`long_input` must be one of {', '.join(LONG_INPUT)}. Received: long_input={value!r}."
        )


def check_bool(name, value):
    """Raises an `InputError` unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"`{name}` must be True or False. Received: {name}={value!r}.")


def check_positive(name, value):
    """Raises an `InputError` unless `value` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"`{name}` must be a positive integer. Received: {name}={value!r}.")
