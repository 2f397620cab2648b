"""The plugin does what every plugin must, and the command counts what the model's file holds."""

import subprocess
import sys

from cacheir.testing import PluginTests
from cacheir_importers.tiny import write_tiny
from safetensors.numpy import load_file


class TestPlugin(PluginTests):
    plugin = "cacheir_weights"


def test_it_counts_every_weight(tmp_path):
    write_tiny(tmp_path / "tiny")
    tensors = load_file(tmp_path / "tiny" / "model.safetensors")
    command = [sys.executable, "-m", "cacheir", "weights", str(tmp_path / "tiny")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    counts = [int(number.replace(",", "")) for number in last.split()[1:]]
    assert counts == [len(tensors), sum(t.size for t in tensors.values()), sum(t.nbytes for t in tensors.values())]
