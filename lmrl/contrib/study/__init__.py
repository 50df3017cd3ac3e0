"""A blind study: people rate dialogues without knowing which policy each is from."""
