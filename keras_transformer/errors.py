"""The one exception that means "the input is at fault, not the program"."""


class InputError(ValueError):
    """A user's mistake, told in one line: what, where, and what was expected.

    The command line prints the message alone and exits with code 2; Python callers
    can catch it as a `ValueError`.
    """
