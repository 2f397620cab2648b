"""GGUF files: reader, writer, tokenizer and importer."""
