"""What accelerators can do at most, as their makers publish it.

Per chip, in both directions of a link only what one direction carries. Sources:

- TPUs: the pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e" of Cloud TPU's
  documentation (system architecture). The pages of v5e, v5p and v6e give interconnect
  as both directions together (400, 1200 and 800 GB/s); half of it is here. v4 has six
  links of 50 GB/s (Jouppi et al. 2023, arXiv:2304.01433, table 4).
- Network of a data centre, per chip: v5e 6.4 Tbit/s a pod of 256. The others are
  guesses, from "How To Scale Your Model" (Google DeepMind 2025, part 2).
- GPUs: data sheets of A100, H100 and H200; dense bfloat16, without sparsity; NVLink
  one way.
"""

import dataclasses
from collections.abc import Mapping

GB, GIB, TERA = 10**9, 2**30, 10**12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Limits of one chip.

    Attributes:
      name: as people say it, "v5e".
      kinds: prefixes of `jax.Device.device_kind`, in lower case.
      peak_flops: bfloat16 operations a second.
      hbm_bytes: memory.
      hbm_bytes_per_s: to and from it.
      link_bytes_per_s: what all links to other chips together carry out of it.
      network_bytes_per_s: its share of the network between slices or hosts, one way.
    """

    name: str
    kinds: tuple[str, ...]
    peak_flops: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    network_bytes_per_s: float


TPUS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            name="v4",
            kinds=("tpu v4",),
            peak_flops=275 * TERA,
            hbm_bytes=32 * GIB,
            hbm_bytes_per_s=1228 * GB,
            link_bytes_per_s=300 * GB,
            network_bytes_per_s=6.25 * GB,
        ),
        Chip(
            name="v5e",
            kinds=("tpu v5 lite", "tpu v5e"),
            peak_flops=197 * TERA,
            hbm_bytes=16 * GIB,
            hbm_bytes_per_s=819 * GB,
            link_bytes_per_s=200 * GB,
            network_bytes_per_s=3.125 * GB,
        ),
        Chip(
            name="v5p",
            kinds=("tpu v5p", "tpu v5"),
            peak_flops=459 * TERA,
            hbm_bytes=95 * GIB,
            hbm_bytes_per_s=2765 * GB,
            link_bytes_per_s=600 * GB,
            network_bytes_per_s=6.25 * GB,
        ),
        Chip(
            name="v6e",
            kinds=("tpu v6 lite", "tpu v6e"),
            peak_flops=918 * TERA,
            hbm_bytes=32 * GIB,
            hbm_bytes_per_s=1638 * GB,
            link_bytes_per_s=400 * GB,
            network_bytes_per_s=12.5 * GB,
        ),
    )
}

GPUS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            name="A100",
            kinds=("nvidia a100",),
            peak_flops=312 * TERA,
            hbm_bytes=80 * GIB,
            hbm_bytes_per_s=2039 * GB,
            link_bytes_per_s=300 * GB,
            network_bytes_per_s=25 * GB,
        ),
        Chip(
            name="H100",
            kinds=("nvidia h100 80gb hbm3", "nvidia h100 sxm"),
            peak_flops=989.4 * TERA,
            hbm_bytes=80 * GIB,
            hbm_bytes_per_s=3350 * GB,
            link_bytes_per_s=450 * GB,
            network_bytes_per_s=50 * GB,
        ),
        Chip(
            name="H100 PCIe",
            kinds=("nvidia h100 pcie",),
            peak_flops=756 * TERA,
            hbm_bytes=80 * GIB,
            hbm_bytes_per_s=2000 * GB,
            link_bytes_per_s=300 * GB,
            network_bytes_per_s=50 * GB,
        ),
        Chip(
            name="H200",
            kinds=("nvidia h200",),
            peak_flops=989.4 * TERA,
            hbm_bytes=141 * GB,
            hbm_bytes_per_s=4800 * GB,
            link_bytes_per_s=450 * GB,
            network_bytes_per_s=50 * GB,
        ),
    )
}

CHIPS: Mapping[str, Chip] = {**TPUS, **GPUS}


def chip(device_kind: str) -> Chip | None:
    """The chip of a `jax.Device.device_kind` ("TPU v5 lite"); None: not known.

    The longest prefix decides: "TPU v5" is a v5p, "TPU v5 lite" is not.
    """
    kind = device_kind.lower()
    fitting = [
        (len(prefix), chip)
        for chip in CHIPS.values()
        for prefix in chip.kinds
        if kind == prefix or kind.startswith((f"{prefix} ", f"{prefix}-"))
    ]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def peak_flops(device_kind: str) -> float | None:
    """bfloat16 operations a second of one device at most; None: not known.

    A utilization is not defined without it ("n/a"), and a CPU has none here: its peak
    depends on the machine.
    """
    known = chip(device_kind)
    return None if known is None else known.peak_flops
