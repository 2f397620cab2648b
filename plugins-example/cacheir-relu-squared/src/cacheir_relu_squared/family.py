"""How the config.json of a ReluSquaredForCausalLM becomes a DecoderSpec: the standard block, with another op in it."""

from cacheir.models.decoder_spec import LayerSpec
from cacheir_importers.families.decoder_config import finish_decoder, open_config, read_count, read_heads
from cacheir_importers.families.rope import read_rotation


def read_config(config):
    """The decoder. Every field that is read is noted: one that nobody read is shown when the model is imported."""
    fields = open_config(config, "relu_squared")
    count, sizes = read_count(fields), read_heads(fields)
    fields.ignore("attention_bias", "mlp_bias", "hidden_act")
    layer = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=read_rotation(fields, sizes["head_dim"]),
        activation="relu_squared",
    )
    return finish_decoder(fields, "relu-squared", (layer,) * count, label="ReluSquaredForCausalLM")
