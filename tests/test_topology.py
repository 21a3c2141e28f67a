"""Steps compiled for TPUs that are not here; limits of chips; what a program holds."""

import pytest

from roxxel import hardware


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),  # what JAX calls a v5p
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_a_device_kind_names_a_chip(device_kind, name):
    assert hardware.chip(device_kind) is hardware.CHIPS[name]
    assert hardware.peak_flops(device_kind) == hardware.CHIPS[name].peak_flops


@pytest.mark.parametrize(
    "device_kind",
    ["cpu", "TPU v7x", "TPU v55", "NVIDIA GeForce RTX 4090", "", "NVIDIA H100 NVL"],
)
def test_the_peak_of_an_unknown_device_is_not_guessed(device_kind):
    assert hardware.peak_flops(device_kind) is None
