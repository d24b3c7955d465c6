"""The bytes of storages alive in a real step, told by weak references and nothing of symacct."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def most_alive(model, x):
    """The most bytes alive in a step of AdamW with its state in place, on the summed output."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with Alive([x, *model.parameters(), *model.buffers(), *(t for s in optimizer.state.values() for t in s.values())]) as alive:
            loss = (_held := model(x)).sum()  # both are held to the step's end
            loss.backward()
            optimizer.step()
    return alive.most


class Alive(TorchDispatchMode):
    """The most bytes of storages that were alive after an op, told by weak references."""

    def __init__(self, given):
        super().__init__()
        self.alive, self.watchers, self.most = {}, {}, 0
        for tensor in given:
            self._see(tensor)

    def _see(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = storage.nbytes()
            self.watchers[key] = weakref.ref(storage, lambda _, key=key: self.alive.pop(key, None))

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        self.most = max(self.most, sum(self.alive.values()))
        return out
