"""The command `keras-transformer chat`."""

import argparse
import sys

from keras_transformer.commands.arguments import add_model, add_sampling, given
from keras_transformer.errors import InputError

_TOP_P = 0.9
_RESET = "/reset"


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds `chat` to the subparsers of the command line."""
    command = commands.add_parser(
        "chat",
        help="hold a conversation with a model that was trained on some",
        description="Answers the lines of stdin one by one, each with what was said before in "
        f"mind. {_RESET} begins a new conversation, Ctrl-D or Ctrl-C ends it. Replies are drawn at "
        "random; with --beam-size they are searched for.",
        options=_add_options,
    )
    command.set_defaults(command=_chat)


def _add_options(command):
    add_model(command)
    names = ("beam_size", "temperature", "top_k", "top_p", "seed", "max_length")
    add_sampling(command, *names, beam_size="none, sampling", top_p=str(_TOP_P))


def _chat(options):
    from keras_transformer.commands.line_reader import read_chunks
    from keras_transformer.commands.line_stream import write_growing
    from keras_transformer.dialog import Conversation
    from keras_transformer.files import is_terminal
    from keras_transformer.translator import Translator

    if sys.stdin is None:
        raise InputError("stdin is closed: expected lines of text.")
    values = given(options, "model")
    if "beam_size" not in values:
        values = {"sampling": True, "top_p": _TOP_P, **values}
    conversation = Conversation(Translator.load(options.model), **values)
    typed, shown = is_terminal(sys.stdin), is_terminal(sys.stdout)
    prompt = "> " if typed and shown else ""
    print(prompt, end="", flush=True)
    for (line,) in read_chunks(sys.stdin.buffer, 1):
        message = line.text.strip()
        if message == _RESET:
            conversation.history.clear()
        elif message:
            try:
                write_growing(conversation.reply(message), sys.stdout, rewrite=shown)
            except InputError as error:
                # Of this message alone.
                print(f"keras-transformer: {error}", file=sys.stderr)
        print(prompt, end="", flush=True)
    print("\n" if prompt else "", end="")
