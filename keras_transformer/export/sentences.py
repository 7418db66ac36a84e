"""Texts to verify an export with, where a run has no sample pairs."""

import itertools

_WHO = ("A man", "Two young women", "The dog", "My children and I")
_DOES = ("can see a house", "are in the park", "was here on 5 May", "will read this old book")
_WHERE = ("again.", "today.", "with a friend.", "near the big river?", "and then go home, too!")
SENTENCES = tuple(map(" ".join, itertools.product(_WHO, _DOES, _WHERE)))
