"""The plugin does what every plugin must, and the pass what every pass must."""

from cacheir.testing import PassTests, PluginTests


class TestPlugin(PluginTests):
    plugin = "cacheir_drop_reshape"


class TestDropReshape(PassTests):
    plugin = "cacheir_drop_reshape"
    pass_name = "drop-reshape"
    cases = "cases"  # NAME.before.cir / NAME.after.cir; `pytest --accept` writes the after
