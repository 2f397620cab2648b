"""Model families: how a configuration becomes a DecoderSpec, and what the tensors are called."""
