"""Planning: what fits on a card, how large, how long it takes, and what limits it."""
