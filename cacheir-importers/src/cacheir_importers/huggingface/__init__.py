"""Hugging Face model folders: configuration, safetensors headers, tokenizer files."""
