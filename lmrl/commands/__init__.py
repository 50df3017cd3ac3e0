"""The verbs of the command line: one module per verb, each a typed function whose docstring is its help."""
