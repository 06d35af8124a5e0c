"""Examples that write checkpoints are stopped, and go on. Most others run in the pages of docs/."""

import re

import pytest
from cluster import launch


@pytest.mark.long(reason="four trainings of a ResNet; tests/python has shorter ones of each framework")
@pytest.mark.parametrize("example", ["keras/imagenet_resnet50.py", "torch/imagenet_resnet50.py"])
def test_an_imagenet_script_goes_on_from_its_checkpoint(example, tmp_path):
    command = [f"examples/{example}", "--checkpoint-format", tmp_path / "{epoch}.keras"]
    command += ["--lr-decay-epochs", "4", "--warmup-epochs", "1", "--base-lr", "0.05", "--epochs"]
    environ = {"KERAS_BACKEND": "torch"}

    output = launch(*command, "1", environ=environ)
    assert "from epoch 0 to 1:" in output and (tmp_path / "1.keras").exists()
    output = launch(*command, "6", "--fp16-pushpull", environ=environ)
    assert "from epoch 1 to 6:" in output
    assert float(re.findall(r"accuracy=(\S+)", output)[0]) >= 0.95
