"""What every export says to options of `translate` and texts that it cannot take."""

from keras_transformer.errors import InputError, did_you_mean


def check_fixed_options(options, built_in):
    """Checks options that an export has at one value alone.

    Args:
        options: A dict of what was asked for.
        built_in: A dict of what the export does.

    Raises:
        InputError: An option is unknown, or has another value.
    """
    for name, value in options.items():
        if name not in built_in:
            raise InputError(f"There is no option `{name}`.{did_you_mean(name, built_in)}")
        if value != built_in[name]:
            raise InputError(
                f"`{name}` is not in this export, which does what {name}={built_in[name]!r} "
                f"does; a run folder has it. Received: {name}={value!r}."
            )


def encoded(name, place, text):
    """A text as UTF-8.

    Args:
        name: What the list that it is in is called.
        place: Its place in the list.
        text: A string.

    Raises:
        InputError: It is no valid Unicode.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(
            f"`{name}` must be valid Unicode. Received: half a surrogate pair in the text at "
            f"place {place}."
        ) from None
