"""Exceptions that the command line tells in one line."""


class InputError(ValueError):
    """A user's mistake, told in one line: what, where, and what was expected.

    The command line prints the message alone and exits with code 2; Python callers
    can catch it as a `ValueError`.
    """


class VerificationError(RuntimeError):
    """An exported artifact does not do what the live model does; nothing was exported."""
