"""The plugin does what every plugin must, and the quantiser what every quantiser must."""

from cacheir.testing import PluginTests, QuantTests
from cacheir.testing.tiny_decoders import tiny_decoders
from cacheir_outer_layers import plan


class TestPlugin(PluginTests):
    plugin = "cacheir_outer_layers"


class TestQuantizer(QuantTests):
    plugin = "cacheir_outer_layers"


def test_the_outer_layers_are_left_alone():
    decoder = tiny_decoders()["two-classes-window"]
    layers = {key.split(".")[1] for key in plan(decoder.spec, decoder.weights, None)}
    assert layers == {"1", "2"}
