"""Corpora before training: cleaning, rules, translation memories, learned terms, the demo's dates."""
