"""Networks of `transformers`: building them, their tokenizers, value heads, adapters and shards."""
