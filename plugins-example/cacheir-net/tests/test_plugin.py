"""The plugin does what every plugin must, and the importer what every importer must."""

import numpy as np
from cacheir.testing import ImporterTests, PluginTests
from cacheir_net import SUFFIX, write


class TestPlugin(PluginTests):
    plugin = "cacheir_net"


def matrices():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((256, 96), (96, 256), (5, 96))]


class TestImporter(ImporterTests):
    plugins = ("cacheir_net",)
    importer = "net"

    @classmethod
    def write_model(cls, folder):
        write(folder / f"net{SUFFIX}", matrices())
        return folder / f"net{SUFFIX}"

    @classmethod
    def expected(cls, path):
        """The network in float64, by NumPy."""
        x = np.random.default_rng(1).standard_normal((3, 96)).astype(np.float32)
        y = x.astype(np.float64)
        for number, matrix in enumerate(matrices()):
            if number:
                y = y / (1 + np.exp(-y))
            y = y @ matrix.T.astype(np.float64)
        return [({"x": x}, [y])]
