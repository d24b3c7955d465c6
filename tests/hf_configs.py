"""Published Hugging Face configs, cut down to the fields that matter, with their exact parameter counts.

The numbers of each config are those of the released `config.json`. Counts are of the model that transformers
5.24 builds from it, tied weights once, buffers not. For the Llama-like ones they also equal the closed form
V·d·(2 - tied) + L·(2·d·d_h·(h + h_kv) + 3·d·f + norms) + d.
"""

from __future__ import annotations

from typing import Any


def config(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **fields}


def decoder(
    architecture: str,
    model_type: str,
    V: int,
    d: int,
    f: int,
    L: int,
    h: int,
    h_kv: int,
    tied: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """A decoder with rotary positions and a gated feed-forward, in the names that Llama uses."""
    return config(
        architecture, model_type, vocab_size=V, hidden_size=d, intermediate_size=f, num_hidden_layers=L,
        num_attention_heads=h, num_key_value_heads=h_kv, tie_word_embeddings=tied, **fields,
    )  # fmt: skip


def llama(*sizes: int, **fields: Any) -> dict[str, Any]:
    return decoder("LlamaForCausalLM", "llama", *sizes, **fields)


def qwen2(*sizes: int, **fields: Any) -> dict[str, Any]:
    return decoder("Qwen2ForCausalLM", "qwen2", *sizes, **fields)


def qwen3(*sizes: int, **fields: Any) -> dict[str, Any]:
    return decoder("Qwen3ForCausalLM", "qwen3", *sizes, head_dim=128, **fields)


def gemma(*sizes: int) -> dict[str, Any]:
    return decoder("GemmaForCausalLM", "gemma", *sizes, tied=True, head_dim=256)


def gemma2(*sizes: int) -> dict[str, Any]:
    return decoder("Gemma2ForCausalLM", "gemma2", *sizes, tied=True, head_dim=256, sliding_window=4096)


def gpt2(d: int, L: int, h: int) -> dict[str, Any]:
    sizes = {"vocab_size": 50257, "n_embd": d, "n_layer": L, "n_head": h, "n_positions": 1024}
    return config("GPT2LMHeadModel", "gpt2", **sizes)


def bert(architecture: str, d: int, L: int, h: int) -> dict[str, Any]:
    return config(
        architecture, "bert", vocab_size=30522, hidden_size=d, num_hidden_layers=L, num_attention_heads=h,
        intermediate_size=4 * d, max_position_embeddings=512, type_vocab_size=2, pad_token_id=0,
    )  # fmt: skip


def t5(d: int, f: int, L: int, h: int) -> dict[str, Any]:
    return config(
        "T5ForConditionalGeneration", "t5", vocab_size=32128, d_model=d, d_ff=f, d_kv=64, num_layers=L,
        num_heads=h, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip


def whisper(V: int, d: int, L: int, h: int, mels: int, L_d: int = 0) -> dict[str, Any]:
    return config(
        "WhisperForConditionalGeneration", "whisper", vocab_size=V, d_model=d, encoder_layers=L,
        decoder_layers=L_d or L, encoder_attention_heads=h, decoder_attention_heads=h, encoder_ffn_dim=4 * d,
        decoder_ffn_dim=4 * d, num_mel_bins=mels, max_source_positions=1500, max_target_positions=448,
    )  # fmt: skip


def rwkv(d: int, L: int) -> dict[str, Any]:
    """Without the halving of every sixth layer in inference, which is for half precision."""
    return config(
        "RwkvForCausalLM", "rwkv", vocab_size=50277, hidden_size=d, num_hidden_layers=L, rescale_every=0,
        attention_hidden_size=d, intermediate_size=4 * d, context_length=1024,
    )  # fmt: skip


def deepseek(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    return config(
        architecture, model_type, num_attention_heads=128, num_key_value_heads=128,
        n_group=8, kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, **fields,
    )  # fmt: skip


# name -> (config, parameters)
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "llama-7b": (llama(32000, 4096, 11008, 32, 32, 32), 6738415616),
    "llama-13b": (llama(32000, 5120, 13824, 40, 40, 40), 13015864320),
    "llama-33b": (llama(32000, 6656, 17920, 60, 52, 52), 32528943616),
    "llama-65b": (llama(32000, 8192, 22016, 80, 64, 64), 65285660672),
    "llama2-70b": (llama(32000, 8192, 28672, 80, 64, 8), 68976648192),
    "llama3-8b": (llama(128256, 4096, 14336, 32, 32, 8), 8030261248),
    "llama3-70b": (llama(128256, 8192, 28672, 80, 64, 8), 70553706496),
    "llama3.2-1b": (llama(128256, 2048, 8192, 16, 32, 8, tied=True, head_dim=64), 1235814400),
    "tinyllama-1.1b": (llama(32000, 2048, 5632, 22, 32, 4), 1100048384),
    "mistral-7b-v0.1": (
        decoder("MistralForCausalLM", "mistral", 32000, 4096, 14336, 32, 32, 8, sliding_window=4096),
        7241732096,
    ),
    "mixtral-8x7b": (
        decoder("MixtralForCausalLM", "mixtral", 32000, 4096, 14336, 32, 32, 8, num_local_experts=8,
                num_experts_per_tok=2, sliding_window=None),
        46702792704,
    ),
    "qwen2.5-0.5b": (qwen2(151936, 896, 4864, 24, 14, 2, tied=True), 494032768),
    "qwen2.5-1.5b": (qwen2(151936, 1536, 8960, 28, 12, 2, tied=True), 1543714304),
    "qwen2.5-3b": (qwen2(151936, 2048, 11008, 36, 16, 2, tied=True), 3085938688),
    "qwen2.5-7b": (qwen2(152064, 3584, 18944, 28, 28, 4), 7615616512),
    "qwen2.5-14b": (qwen2(152064, 5120, 13824, 48, 40, 8), 14770033664),
    "qwen2.5-32b": (qwen2(152064, 5120, 27648, 64, 40, 8), 32763876352),
    "qwen2.5-72b": (qwen2(152064, 8192, 29568, 80, 64, 8), 72706203648),
    "qwen3-0.6b": (qwen3(151936, 1024, 3072, 28, 16, 8, tied=True), 596049920),
    "qwen3-1.7b": (qwen3(151936, 2048, 6144, 28, 16, 8, tied=True), 1720574976),
    "qwen3-4b": (qwen3(151936, 2560, 9728, 36, 32, 8, tied=True), 4022468096),
    "qwen3-8b": (qwen3(151936, 4096, 12288, 36, 32, 8), 8190735360),
    "qwen3-14b": (qwen3(151936, 5120, 17408, 40, 40, 8), 14768307200),
    "qwen3-32b": (qwen3(151936, 5120, 25600, 64, 64, 8), 32762123264),
    "qwen3-30b-a3b": (
        decoder("Qwen3MoeForCausalLM", "qwen3_moe", 151936, 2048, 6144, 48, 32, 4, head_dim=128,
                num_experts=128, moe_intermediate_size=768, num_experts_per_tok=8),
        30532122624,
    ),
    "gemma-2b": (gemma(256000, 2048, 16384, 18, 8, 1), 2506172416),
    "gemma-7b": (gemma(256000, 3072, 24576, 28, 16, 16), 8537680896),
    "gemma2-2b": (gemma2(256000, 2304, 9216, 26, 8, 4), 2614341888),
    "gemma2-9b": (gemma2(256000, 3584, 14336, 42, 16, 8), 9241705984),
    "gpt2": (gpt2(768, 12, 12), 124439808),
    "gpt2-medium": (gpt2(1024, 24, 16), 354823168),
    "gpt2-large": (gpt2(1280, 36, 20), 774030080),
    "gpt2-xl": (gpt2(1600, 48, 25), 1557611200),
    "bert-base-uncased, bare": (bert("BertModel", 768, 12, 12), 109482240),
    "bert-base-uncased, masked": (bert("BertForMaskedLM", 768, 12, 12), 109514298),
    "bert-base-uncased, pretraining": (bert("BertForPreTraining", 768, 12, 12), 110106428),
    "bert-large-uncased, bare": (bert("BertModel", 1024, 24, 16), 335141888),
    "bert-large-uncased, masked": (bert("BertForMaskedLM", 1024, 24, 16), 335174458),
    "roberta-base": (
        config("RobertaModel", "roberta", vocab_size=50265, hidden_size=768, num_hidden_layers=12,
               num_attention_heads=12, intermediate_size=3072, max_position_embeddings=514, type_vocab_size=1,
               pad_token_id=1),
        124645632,
    ),
    "t5-small": (t5(512, 2048, 6, 8), 60506624),
    "t5-base": (t5(768, 3072, 12, 12), 222903552),
    "t5-11b": (t5(1024, 65536, 24, 128) | {"d_kv": 128}, 11307321344),
    # with the 1500·d sinusoids, which transformers keeps as a parameter that does not train
    "whisper-tiny": (whisper(51865, 384, 4, 6, 80), 37184640 + 1500 * 384),
    "whisper-large-v3": (whisper(51866, 1280, 32, 20, 128), 1543490560),
    "opt-125m": (
        config("OPTForCausalLM", "opt", vocab_size=50272, hidden_size=768, num_hidden_layers=12, ffn_dim=3072,
               num_attention_heads=12, max_position_embeddings=2048, word_embed_proj_dim=768),
        125239296,
    ),
    "pythia-160m": (
        config("GPTNeoXForCausalLM", "gpt_neox", vocab_size=50304, hidden_size=768, num_hidden_layers=12,
               num_attention_heads=12, intermediate_size=3072, rotary_pct=0.25),
        162322944,
    ),
    "phi-2": (
        decoder("PhiForCausalLM", "phi", 51200, 2560, 10240, 32, 32, 32, partial_rotary_factor=0.4),
        2779683840,
    ),
    "phi-3-mini": (
        decoder("Phi3ForCausalLM", "phi3", 32064, 3072, 8192, 32, 32, 32, pad_token_id=32000,
                sliding_window=2047),
        3821079552,
    ),
    "falcon-7b": (
        config("FalconForCausalLM", "falcon", vocab_size=65024, hidden_size=4544, num_hidden_layers=32,
               num_attention_heads=71, multi_query=True, parallel_attn=True, bias=False),
        6921720704,
    ),
    "mamba-130m": (
        config("MambaForCausalLM", "mamba", vocab_size=50280, hidden_size=768, num_hidden_layers=24,
               state_size=16, expand=2, time_step_rank=48),
        129135360,
    ),
    "mamba-2.8b": (
        config("MambaForCausalLM", "mamba", vocab_size=50280, hidden_size=2560, num_hidden_layers=64,
               state_size=16, expand=2, time_step_rank=160),
        2768345600,
    ),
    "rwkv-169m": (rwkv(768, 12), 169342464),
    "rwkv-430m": (rwkv(1024, 24), 430397440),
    "rwkv-1b5": (rwkv(2048, 24), 1515106304),
    "deepseek-v2": (
        deepseek("DeepseekV2ForCausalLM", "deepseek_v2", vocab_size=102400, hidden_size=5120,
                 intermediate_size=12288, moe_intermediate_size=1536, num_hidden_layers=60,
                 n_routed_experts=160, n_shared_experts=2, num_experts_per_tok=6,
                 first_k_dense_replace=1, topk_group=3,
                 topk_method="group_limited_greedy"),
        235741434880,
    ),
    "deepseek-v3": (
        deepseek("DeepseekV3ForCausalLM", "deepseek_v3", vocab_size=129280, hidden_size=7168,
                 intermediate_size=18432, moe_intermediate_size=2048, num_hidden_layers=61,
                 n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
                 first_k_dense_replace=3, topk_group=4),
        671026404352,
    ),
}  # fmt: skip

# One of each family; the others are the same classes at other sizes.
FAMILIES = (
    "llama3-8b", "mistral-7b-v0.1", "mixtral-8x7b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "gemma-7b",
    "gemma2-2b", "gpt2", "bert-base-uncased, bare", "bert-base-uncased, pretraining", "roberta-base",
    "t5-base", "opt-125m", "pythia-160m",
    "phi-2", "phi-3-mini", "falcon-7b", "mamba-130m", "deepseek-v2", "deepseek-v3",
)  # fmt: skip
