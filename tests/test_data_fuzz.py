"""Damaged files: each reads as before or is refused, whatever was damaged and how."""

import numpy as np
import pytest

from roxxel import Roxxel, ShardFormatError

CASES = {
    "blocks": ([np.arange(3000, dtype=np.int32)], {"block_size": 400}),
    "items": (np.arange(600, dtype=np.uint8).reshape(50, 4, 3), {"item_shape": (4, 3)}),
    "ragged": ([bytes(range(n % 97)) for n in range(150)], {"item_shape": (None,)}),
    "empty": ([], {}),
}
EXTREMES = [0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 31, 32, 4096]


def everything(path, verify):
    data = Roxxel(path, verify=verify)
    rows = data.rows(np.arange(data.num_elements // 7), 7)
    records = [(r.shape, r.tobytes()) for r in data[:]]
    facts = (len(data), data.dtype, data.item_shape, data.metadata)
    return facts, records, rows.tobytes(), data.elements(0, data.num_elements).tobytes()


def mutate(raw, begin, rng):
    """`raw` with one kind of damage behind byte `begin`."""
    content = bytearray(raw)
    # half of them in the tail, where the sizes are
    low = begin if rng.integers(2) else max(begin, len(raw) - 120)
    at = int(rng.integers(low, len(raw)))
    match int(rng.integers(6)):
        case 0:
            content[at] ^= 1 << int(rng.integers(8))
        case 1:
            for i in rng.integers(low, len(raw), 4).tolist():
                content[i] = int(rng.integers(256))
        case 2:
            value = EXTREMES[int(rng.integers(len(EXTREMES)))]
            content[at : at + 8] = value.to_bytes(8, "little", signed=True)
        case 3:
            del content[at : at + int(rng.integers(1, 60))]
        case 4:
            content[at:at] = content[at : at + int(rng.integers(1, 60))]
        case 5:
            content[at : at + 16] = bytes(16)
    return bytes(content)


@pytest.mark.parametrize("verify", ["lazy", None])
@pytest.mark.parametrize("name", CASES)
def test_damaged_files_read_as_before_or_are_refused(tmp_path, name, verify):
    items, options = CASES[name]
    path = tmp_path / "a.rox"
    Roxxel(path).write(items, metadata={"a": [1, "b"]}, **options)
    raw = path.read_bytes()
    payload = int.from_bytes(raw[-24:-16], "little")
    # without checks only the structure is looked at, and lengths have no structure
    begin = 0 if verify else payload
    if name == "ragged" and not verify:
        begin += 8 * len(Roxxel(path))
    expected = everything(path, verify)
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(1250):
        mutated = mutate(raw, begin, rng)
        path.write_bytes(mutated)
        try:
            assert everything(path, verify) == expected
        except ShardFormatError:
            refused += 1
            continue
    assert refused > 500
