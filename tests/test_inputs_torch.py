"""torch's StatefulDataLoader as an input, where torchdata is installed."""

import contextlib
import json

import numpy as np
import pytest

from roxxel.train.inputs import Input
from tests.test_inputs import IDS, STEPS, trainer
from tests.test_trainer import assert_same_run

torch = pytest.importorskip("torch")
loaders = pytest.importorskip("torchdata.stateful_dataloader")


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 96  # 12 batches an epoch

    def __getitem__(self, index):
        return {"input_ids": torch.from_numpy(IDS[index].astype(np.int64))}


class Iterable(torch.utils.data.IterableDataset):
    """Keeps its own place, as StatefulDataLoader allows."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 96:
            self.at += 1
            yield torch.from_numpy(IDS[self.at - 1].astype(np.int64))
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def loader(num_workers=0):
    torch.manual_seed(0)
    return loaders.StatefulDataLoader(
        Rows(), batch_size=8, shuffle=True, num_workers=num_workers
    )


MAKE = {
    "shuffled": loader,
    "two workers": lambda: loader(2),
    "iterable": lambda: loaders.StatefulDataLoader(Iterable(), batch_size=8),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_saved_position_continues_with_the_next_batch(name):
    def make():
        return Input(MAKE[name](), epochs=None)

    with contextlib.closing(make().steps(0, STEPS)) as batches:
        undisturbed = list(batches)
    continued, position = [], None
    for start, stop in ((0, 3), (3, 12), (12, 13), (13, STEPS)):
        stream = make()
        if position is not None:
            stream.restore(position)
        with contextlib.closing(stream.steps(start, STEPS)) as batches:
            continued += [next(batches) for _ in range(start, stop)]
            position = json.loads(json.dumps(stream.position(stop)))
    np.testing.assert_array_equal(continued, undisturbed)


def test_a_stopped_run_is_the_undisturbed_one_bit_for_bit(tmp_path):
    def make():
        return Input(loader(), epochs=None)

    assert trainer(make()).run(tmp_path / "undisturbed") == 0
    for stop in (3, None):
        assert trainer(make(), stop_after=stop).run(tmp_path / "cut") == 0
    assert_same_run(tmp_path / "undisturbed", tmp_path / "cut")
