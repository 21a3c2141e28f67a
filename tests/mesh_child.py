"""A process of two for test_meshes.py: `mesh_child.py FOLDER`."""

import sys

from roxxel import distributed

if __name__ == "__main__":
    distributed.initialize()

    import numpy as np
    import test_meshes

    for family, name in test_meshes.ACROSS:
        axes = test_meshes.ACROSS[family, name]
        loss, gradients = test_meshes.loss_and_gradients(family, axes)
        if distributed.is_lead():
            np.savez(f"{sys.argv[1]}/{family}-{name}.npz", loss=loss, **gradients)
