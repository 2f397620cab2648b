"""Readers for model folders and files: Hugging Face, GGUF."""
