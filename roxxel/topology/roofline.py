"""The least time that a compiled step can take on its chips, and what that allows.

    time >= max(FLOPs / peak, HBM bytes / HBM bandwidth,
                bytes sent between chips / their links,
                bytes sent between slices / the network)

FLOPs are those of the products that were compiled, or of the model where these are
more: kernels written by hand are left out of the compiler's. Each term is for one chip
and assumes perfect overlap with the others, all links of a chip busy, and products at
the peak. A run is slower; none is faster.
"""

import dataclasses

from roxxel.hardware import Chip
from roxxel.topology.compiling import Compiled

FORMULA = (
    "max(FLOPs / peak, HBM bytes / bandwidth, chip to chip / links, "
    "slice to slice / network)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """Seconds of a step at least, by what takes them.

    Attributes:
      terms: by name.
      tokens_per_s: of all chips at most.
      utilization: model FLOPs a second over the peak of all chips, at most.
    """

    terms: dict[str, float]
    tokens_per_s: float
    utilization: float

    @property
    def seconds(self) -> float:
        """The greatest of the terms."""
        return max(self.terms.values())

    @property
    def by(self) -> str:
        """The name of the greatest."""
        return max(self.terms, key=lambda name: self.terms[name])


def bound(compiled: Compiled, chip: Chip, flops_per_token: float) -> Bound:
    """Of a step that fits.

    Args:
      compiled: for chips of this kind.
      flops_per_token: of the model, both passes, without what remat computes again.
    """
    sent = [one.sent_bytes(compiled.slices) for one in compiled.found]
    tokens = compiled.span.batch_size * compiled.span.seq_len
    # The compiler's count leaves out kernels written by hand.
    work = max(compiled.flops, tokens * flops_per_token / len(compiled.slices))
    terms = {
        "compute": work / chip.peak_flops,
        "HBM": compiled.hbm_bytes / chip.hbm_bytes_per_s,
        "links": sum(near for near, _ in sent) / chip.link_bytes_per_s,
        "network": sum(far for _, far in sent) / chip.network_bytes_per_s,
    }
    seconds = max(terms.values())
    peak = chip.peak_flops * len(compiled.slices)
    return Bound(
        terms=terms,
        tokens_per_s=tokens / seconds,
        utilization=tokens * flops_per_token / seconds / peak,
    )
