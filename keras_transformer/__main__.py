"""`python -m keras_transformer`: the command line."""

from keras_transformer.cli.main import main

if __name__ == "__main__":
    main()
