"""One host batch onto the devices of a mesh, each process reading only its own rows."""

import numpy as np

from roxxel.errors import ConfigError

try:
    import jax
except ImportError as err:
    raise ImportError(
        "batches on devices need jax: pip install 'roxxel[checkpoint]', or leave out"
        " mesh and data_sharding for numpy batches."
    ) from err


class Placement:
    """Puts one batch on the devices of `sharding`, reading what this process owns."""

    def __init__(self, sharding, shape: tuple[int, ...], dtype: np.dtype):
        self.sharding = sharding
        self._shape = shape
        self._dtype = dtype
        self._check_x64()
        self._is_local = sharding.is_fully_addressable
        # (first row, last row + 1) -> devices that hold them, with their part of a row
        self._readers: dict[tuple[int, int], list] = {}
        indices = sharding.addressable_devices_indices_map(shape)
        for device, (rows, *parts) in indices.items():
            start, stop, _ = rows.indices(shape[0])
            part = (slice(None), *parts)
            self._readers.setdefault((start, stop), []).append((device, part))

    def put(self, read_rows, begin: int):
        """The global array whose rows i to j are `read_rows(begin + i, begin + j)`."""
        if self._is_local:  # a third of the cost of the pieces
            host = read_rows(begin, begin + self._shape[0]).reshape(self._shape)
            array = jax.device_put(host, self.sharding)
            if array.dtype != self._dtype:
                self._check_x64(is_wrong=True)
            return array
        return self._put_pieces(read_rows, begin)

    def _put_pieces(self, read_rows, begin: int):
        """As `put`, of the rows that this process's devices hold."""
        pieces, devices = [], []
        for (start, stop), users in self._readers.items():
            host = read_rows(begin + start, begin + stop)
            host = host.reshape(-1, *self._shape[1:])
            for device, part in users:
                pieces.append(host[part])
                devices.append(device)
        arrays = jax.device_put(pieces, devices)
        if any(a.dtype != self._dtype for a in arrays):
            self._check_x64(is_wrong=True)
        return jax.make_array_from_single_device_arrays(
            self._shape, self.sharding, arrays, dtype=self._dtype
        )

    def _check_x64(self, *, is_wrong: bool = False) -> None:
        """jax would silently cut 64-bit values to 32 bits."""
        if is_wrong or jax.dtypes.canonicalize_dtype(self._dtype) != self._dtype:
            raise ConfigError(
                f"batches of {self._dtype.name} need jax_enable_x64, which is off:"
                " enable x64, leave dtype out for int32, or write the data in 32 bits."
            )


def all_devices():
    """A mesh of all devices along one axis, "data"."""
    return jax.sharding.Mesh(np.array(jax.devices()), ("data",))


def resolve_sharding(mesh, data_sharding):
    """The jax sharding of batches; with a mesh alone, rows over its first axis.

    Raises:
        ConfigError: The two do not go together or are of another kind.
    """
    named, spec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec
    if data_sharding is None:
        data_sharding = spec(mesh.axis_names[0], None)
    if isinstance(data_sharding, jax.sharding.Sharding):
        other = getattr(data_sharding, "mesh", mesh)
        if mesh not in (None, other):
            raise ConfigError(
                f"data_sharding is over {other}, mesh is {mesh}; give one of them."
            )
        return data_sharding
    if not isinstance(data_sharding, spec) or mesh is None:
        raise ConfigError(
            f"data_sharding must be a jax sharding, or a PartitionSpec with mesh=, got"
            f" {data_sharding!r}."
        )
    try:
        return named(mesh, data_sharding)
    except ValueError as err:
        raise ConfigError(f"data_sharding does not go with the mesh: {err}") from err


def check_divides(sharding, names: list[str], shape: tuple[int, ...]) -> None:
    """Refuses batches that cannot be cut into equal pieces, before anything is read.

    Args:
        sharding: The jax sharding of batches.
        names: What each dimension is, with its size.
        shape: Of a batch.

    Raises:
        ConfigError: Names the dimension, the number of devices and the axis.
    """
    spec = getattr(sharding, "spec", ())
    if len(spec) > len(shape):
        raise ConfigError(
            f"data_sharding {spec} has {len(spec)} dimensions, batches have"
            f" {len(shape)}: {', '.join(names)}."
        )
    for name, size, axes in zip(names, shape, spec, strict=False):
        axes = axes if isinstance(axes, tuple) else (axes,)
        axes = [axis for axis in axes if axis is not None]
        parts = int(np.prod([sharding.mesh.shape[axis] for axis in axes], dtype=int))
        if size % parts:
            raise ConfigError(
                f"{name} not divisible by {parts} devices on axis {', '.join(axes)}: "
                f"give a multiple of {parts}, or another mesh."
            )
    try:
        sharding.shard_shape(shape)
    except (ValueError, IndexError) as err:
        raise ConfigError(f"batches {list(shape)} cannot be laid out: {err}") from err
