"""A process of two for test_meshes.py: `mesh_child.py FOLDER`."""

import sys

from roxxel import distributed

if __name__ == "__main__":
    distributed.initialize()

    import numpy as np
    import test_meshes

    for family, axes in test_meshes.ACROSS.items():
        loss, gradients = test_meshes.loss_and_gradients(family, axes)
        if distributed.is_lead():
            np.savez(f"{sys.argv[1]}/{family}.npz", loss=loss, **gradients)
