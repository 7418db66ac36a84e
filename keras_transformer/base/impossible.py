"""Numbers that mean "impossible", each with its reason. In results, it is minus infinity."""

NEG_INF = -1e30
"""Score that a search or a mask gives in place of minus infinity.

It is below any that a model can reach, and finite: `-inf - -inf` and a softmax of `-inf` are NaN.
"""
HIDDEN = -1e9
"""Added to a score in a LiteRT file, which has few operations: it hides any score that a layer
normalization allows, and several of them are finite."""
BANNED = -100.0
"""Bias of an id that no search may choose, in the weights of a model of another program.

Its probability is 0, and in a loss with label smoothing it stays small.
"""
