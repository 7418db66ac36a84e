"""Writes small files of `torch.save` in both layouts: `python make.py` (torch 2.13)."""

import pathlib

import torch

FOLDER = pathlib.Path(__file__).parent


def state():
    """Tensors of several types; `view` and `column` share one storage, as do `tied` and `whole`."""
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 8
    module = torch.nn.Module()
    module.whole = torch.nn.Parameter(whole)
    module.tied = module.whole
    module.register_buffer("with_float16", torch.arange(6, dtype=torch.float16) / 4)
    module.register_buffer("with_bfloat16", torch.arange(6, dtype=torch.bfloat16).reshape(2, 3) / 4)
    module.register_buffer("with_int64", torch.arange(5))
    numbers = torch.arange(20, dtype=torch.float64)
    module.register_buffer("view", numbers[2:18].reshape(4, 4).T)
    module.register_buffer("column", numbers.reshape(4, 5)[:, 1])
    return module.state_dict()


if __name__ == "__main__":
    torch.save(state(), FOLDER / "zip.bin")
    torch.save(dict(state()), FOLDER / "legacy.bin", _use_new_zipfile_serialization=False)
