"""The shape of Llama 3.1 405B: as a config to derive, and counted numerically when run as a program.

The program builds the model on the meta device, runs forward and backward once under torch's FlopCounterMode
and prints the FLOPs. The mask is given: to make one, transformers reads values, which meta tensors lack.
"""

from __future__ import annotations

import json
from pathlib import Path

B, T = 1, 8192
SHAPE = {
    "vocab_size": 128256,
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "intermediate_size": 53248,
}


def write_config(folder: Path, layers: int) -> Path:
    """A folder with the config.json of this shape, that many layers deep."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPE}
    config["num_hidden_layers"] = layers
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def counted() -> int:
    """The FLOPs of forward and backward, all layers run one after the other."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, use_cache=False))
        tokens = torch.zeros(B, T, dtype=torch.int64)
        mask = torch.ones(B, 1, T, T, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens, attention_mask=mask).loss.backward()
    return counter.get_total_flops()


if __name__ == "__main__":
    print(counted())
