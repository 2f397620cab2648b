"""Quantised Hugging Face checkpoints: AWQ, GPTQ, compressed-tensors and fp8."""
