"""Ids that every tokenizer, loss and search of this package agrees on."""

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3

NO_LABEL = -1
"""Label of a row of padding in a batch of a classifier, which losses and metrics leave out."""
