"""What the names of a claim mean in a model: its sizes, formula keys, N and D, and other papers' names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import NoReturn

import sympy as sp
from sympy import Expr

from symacct.claims.absent import unknown_active, why_absent
from symacct.claims.counted import MEANINGS, PER_TOKEN
from symacct.errors import FormulaError, UnknownSymbol
from symacct.expressions import parse, to_text
from symacct.formula_reader import caret
from symacct.graph import Graph
from symacct.latex.closed import PARAMETERS, QUANTITIES, plain
from symacct.report.readable import reading_of
from symacct.symbols import GLOSSARY, symbol

_LONGEST = 64
_KEY = re.compile(r"[a-z]+\.[a-z_]+\Z")

# What papers and libraries call the sizes of the glossary. A model's own name comes first.
ALIASES: Mapping[str, str] = {
    "B": "b batch batch_size n_batch bs bsz mbs",
    "T": "s seq seq_len seqlen sequence_length n_ctx l_seq T_seq n_seq context t",
    "V": "v vocab vocab_size n_vocab V_vocab d_vocab",
    "L": ("l n_layer n_layers num_layers layers n_l num_hidden_layers depth L_layers N_layers n_blocks"),
    "d": ("d_model D_model n_embd hidden hidden_size d_hidden n_embed width d_emb embed_dim dim"),
    "h": "a n_head n_heads num_heads heads n_h H n_q num_attention_heads h_q",
    "h_kv": ("g n_kv n_kv_heads num_key_value_heads n_head_kv kv_heads h_k num_kv_heads n_kv_head n_groups"),
    "d_h": "d_head head_dim d_k Q d_attn_head head_size D_h hd",
    "f": ("d_ff ff d_mlp ffw_size n_inner intermediate_size F d_ffn ffn d_inner ffn_hidden_size h_ff d_f"),
    "E": "n_experts num_experts n_expert experts N_e num_local_experts",
    "k": "top_k topk n_active num_experts_per_tok K n_active_experts",
    "P": "n_positions n_pos max_position_embeddings block_size T_max",
    "S": "s_enc T_enc source_length S_enc",
    "d_c": "kv_lora_rank d_kv",
    "d_q": "q_lora_rank",
    "d_r": "qk_rope_head_dim d_rope",
    "d_v": "v_head_dim",
    "C": "n_classes num_classes classes",
}
_CONCEPT = {alias: concept for concept, names in ALIASES.items() for alias in names.split()}
_WORDS = {
    "B": ("batch",),
    "T": ("sequence length", "context length"),
    "V": ("vocabulary",),
    "L": ("layers", "depth"),
    "d": ("model width", "hidden size", "embedding width"),
    "h": ("attention heads", "query heads", "heads"),
    "h_kv": ("key and value heads", "key/value heads"),
    "d_h": ("head width", "head dimension"),
    "f": ("hidden width of the mlp", "feed-forward width"),
    "E": ("experts",),
    "k": ("experts per token",),
}
_SPELLED = {
    "flops.step": "C FLOPs flops step C_step C_train flops_step FLOPs_step FLOPs_train",
    "flops.forward": "forward C_forward C_fwd flops_forward F_fwd FLOPs_forward FLOPs_fwd",
    "flops.backward": "backward C_backward C_bwd flops_backward FLOPs_backward FLOPs_bwd",
    "flops.hardware": "hardware",
    "params.total": "params parameters n_params",
    "bytes.saved": "saved activations M_act",
    "bytes.peak": "peak",
    "bytes.kv_cache": "kv_cache KV_cache M_KV M_kv",
}
KEYS = {word: key for key, words in _SPELLED.items() for word in words.split()} | {
    plain(name): key for key, (name, _) in QUANTITIES.items() if name != PARAMETERS
}
COUNTS = {
    "N": "",
    "N_total": "all",
    "N_all": "all",
    "N_trainable": "trainable",
    "N_active": "active",
    "N_act": "active",
    "N_non_embedding": "non-embedding",
    "N_nonembedding": "non-embedding",
    "N_non_emb": "non-embedding",
    "N_matmul": "matmul",
    "N_prime": PER_TOKEN,
    "P_prime": PER_TOKEN,  # where N is a size of the model
}
FUNCTIONS = {
    "floor": "floor",
    "ceiling": "ceiling",
    "ceil": "ceiling",
    "Max": "Max",
    "max": "Max",
    "Min": "Min",
    "min": "Min",
    "Mod": "Mod",
    "mod": "Mod",
}


@dataclass
class Names:
    """The names that a claim about this graph may use, and those that one claim did use.

    `held` are stand-ins, names of no size: for a formula key, a parameter count or an expression.
    `used` says of each name in the claim how it was read, where, and as which size or stand-in. `letters` are
    sizes' names under a convention; `spelled` are stand-ins for formulas named by more than a letter.
    """

    graph: Graph
    keys: Iterable[str]
    mapped: Mapping[str, Expr | str] = field(default_factory=dict)
    held: dict[str, tuple[str, str | Expr]] = field(default_factory=dict)
    used: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    letters: Mapping[str, str] = field(default_factory=dict)
    spelled: set[str] = field(default_factory=set)

    def pieces(self, text: str, word: str, at: int) -> list[tuple[str, int]]:
        """The readable names that a word of the claim stands for, a product of them, each with its place."""
        whole = self._one(text, word, at)
        if whole is not None:
            return [(whole, at)]
        split = self._split(text, word, at)
        if split is None:
            self._unknown(text, word, at)
        found = []
        for part in split:
            name = self._one(text, part, at, alone=False)
            assert name is not None
            found.append((name, at))
            at += len(part)
        return found

    def _one(self, text: str, word: str, at: int, alone: bool = True) -> str | None:
        """One name's stand-in or size, or None. Keys and their aliases only where they stand `alone`."""
        meant = self.mapped.get(word)
        if isinstance(meant, str):  # another name for a formula's key or for a count of parameters
            return self._named(text, meant, at, True)
        if meant is not None:
            return self._noted(word, "map", self._hold("map", meant), at)
        return self._named(text, word, at, alone)

    def _named(self, text: str, word: str, at: int, alone: bool) -> str | None:
        """The stand-in or size of a name that --map does not tell."""
        if word in self.graph.symbols:
            return self._noted(word, "own", word, at)
        if alone and (word in KEYS or "." in word):
            return self._keyed(word, self._key(text, word, at), at)
        if word in COUNTS:
            self._countable(text, word, at)
            return self._noted(word, "count", self._hold("count", COUNTS[word]), at)
        if word == "D":
            return self._noted(word, "tokens", self._hold("tokens", self._tokens(text, at)), at)
        meant = self._by_concept(word)
        if meant is None and alone and word in (PARAMETERS, "P_total"):  # as `latex` writes it
            return self._keyed(word, "params.total", at)
        if meant is not None and len(word) == 2 and word[0] != word[1] and all(map(self._factor, word)):
            raise FormulaError(
                f"{word!r} may be {word[0]}*{word[1]} or {self._spoken(meant)}; write which one\n"
                f"{caret(text, at)}"
            )
        return None if meant is None else self._noted(word, "alias", meant, at)

    def _countable(self, text: str, word: str, at: int) -> None:
        """Refuses a count of active parameters that is not known."""
        unknown = unknown_active(self.graph, self.keys) if COUNTS[word] == "active" else ""
        if unknown:
            raise UnknownSymbol(f"{unknown}\n{caret(text, at)}")

    def _spoken(self, name: str) -> str:
        held = self.held.get(name, ("", name))[1]
        return held if isinstance(held, str) else to_text(held)

    def _noted(self, word: str, how: str, name: str, at: int) -> str:
        self.used.setdefault(word, (how, at, name))
        return name

    def _keyed(self, word: str, key: str, at: int) -> str:
        """A formula's stand-in; that a letter was read so is told."""
        name = self._hold("key", key)
        if len(word) == 1:
            return self._noted(word, "key", name, at)
        self.spelled.add(name)
        return name

    def _hold(self, kind: str, what: str | Expr) -> str:
        for name, held in self.held.items():
            if held == (kind, what):
                return name
        number = len(self.held)
        while (name := f"held{number}_") in self.graph.symbols:
            number += 1
        self.held[name] = (kind, what)
        return name

    def _key(self, text: str, word: str, at: int) -> str:
        key = KEYS.get(word, word)
        if key in self.keys:
            return key
        hint = why_absent(key, self.graph, self.keys)
        raise UnknownSymbol(f"{self.graph.target} has no formula {key[:40]!r}; {hint}\n{caret(text, at)}")

    def _tokens(self, text: str, at: int) -> Expr:
        reading = reading_of(self.graph)
        length = reading.data - reading.batch
        if len(reading.batch) != 1 or len(length) != 1:
            inputs = [
                f"{p.node.label or 'input'} {' × '.join(to_text(n) for n in out.shape)}"
                for p in self.graph.sources("input")
                for out in p.node.outputs
            ]
            first = sorted(reading.batch, key=str)[:1] + sorted(length, key=str)[:1]
            product = to_text(sp.Mul(*first)) if first else "1"
            raise UnknownSymbol(
                f"D counts tokens, and the inputs of {self.graph.target} are not one sequence of them "
                f"({', '.join(inputs)}); say what it is, as in --given 'D = {product}' or --map D={product}, "
                f"or write it out\n{caret(text, at)}"
            )
        return sp.Mul(*reading.batch, *length)

    def _by_concept(self, word: str) -> str | None:
        concept = _CONCEPT.get(word, word if word in ALIASES or word in GLOSSARY else "")
        if not concept:
            return None
        if concept in self.graph.symbols and word == "s" and "S" in self.graph.symbols:
            return None
        found = size_of(concept, self.graph)
        if found is not None:
            return found
        width, heads = size_of("d", self.graph), size_of("h", self.graph)
        if concept == "d_h" and width and heads:
            return self._hold("map", symbol(width) / symbol(heads))
        if concept == "h_kv" and heads and word != "g":
            return heads
        return None

    def _split(self, text: str, word: str, at: int) -> list[str] | None:
        """The word as a product of known names, `Bsh` or `Ld_h`; None where it is none or no single one."""
        if len(word) > _LONGEST:
            return None
        memory: dict[int, list[str] | None] = {len(word): []}
        for begin in range(len(word) - 1, -1, -1):
            memory[begin] = None
            for end in range(len(word), begin, -1):
                rest, piece = memory[end], word[begin:end]
                if not word[begin].isalpha() or not self._factor(piece):
                    continue
                # A subscript is one letter, as in LaTeX, or the rest: d_embd is not d_emb·d.
                split = "_" in piece and len(piece.partition("_")[2]) > 1 and end < len(word)
                if rest is not None and not split:
                    memory[begin] = [piece, *rest]
                if memory[begin] is not None or "_" in piece:
                    break
        found = memory[0]
        twice = found is not None and any(a + b in _CONCEPT for a, b in pairwise(found) if a == b)
        return None if twice else found  # ff is one size, not f·f

    def _factor(self, word: str) -> bool:
        """Whether a name may stand unspaced beside others: `bs` and `hd` would be read for b·s and h·d."""
        if word in self.mapped or word in self.graph.symbols or word in COUNTS or word == "D":
            return True
        return (len(word) == 1 or "_" in word) and self._by_concept(word) is not None

    def _unknown(self, text: str, word: str, at: int) -> NoReturn:
        sizes = ", ".join(f"{n} ({i.meaning})" if i.meaning else n for n, i in self.graph.symbols.items())
        near = get_close_matches(word[:40], [*self.graph.symbols, *self.keys], 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        meant = near[0] if near else "<formula>" if at < text.find("=") else "<size>"
        raise UnknownSymbol(
            f"unknown symbol {word[:40]!r}; {hint}say what it means, "
            f"as in --map {word[:40]}={meant}, or put * between factors; "
            f"sizes of {self.graph.target} are {sizes}\n{caret(text, at)}"
        )

    def told(self, choice: str) -> dict[str, str]:
        """How each name that is no size of the model was read; a plain N by the convention's choice."""
        found = {}
        for word, (how, _, name) in sorted(self.used.items()):
            held = self.held.get(name, ("", name))[1]
            if how == "count":
                told = str(held) or choice
                found[word] = MEANINGS.get(told, "a sixth of what a token costs beside attention")
            elif how != "own":
                found[word] = held if isinstance(held, str) else to_text(held)
        return found

    def settle(self, text: str) -> None:
        """Raises FormulaError where a letter may mean two sizes: `h` beside Megatron's `s` or `a`."""
        foreign = [w for w in ("s", "a") if self.used.get(w, ("",))[0] == "alias"]
        how, at, heads = self.used.get("h", ("", 0, ""))
        if not foreign or how not in ("own", "alias") or heads != size_of("h", self.graph):
            return
        width = size_of("d", self.graph)
        if width and width not in {name for _, _, name in self.used.values()}:
            suggested = ",".join([*(f"{w}={self.used[w][2]}" for w in foreign), f"h={width}"])
            raise FormulaError(
                f"'h' beside {foreign[0]!r} may be the model's width or its heads; say which: "
                f"--map {suggested} or --map h={heads}\n{caret(text, at)}"
            )
        if "a" in foreign:
            raise FormulaError(
                f"'a' and 'h' would both be heads; say which is which: --map a={heads},h={width or 'd'}\n"
                f"{caret(text, self.used['a'][1])}"
            )


def size_of(concept: str, graph: Graph) -> str | None:
    """The size of a model that a name of the glossary speaks of: by its name, another one, or a meaning."""
    if concept in graph.symbols:
        return concept
    named = [n for n in graph.symbols if _CONCEPT.get(n) == concept]
    words = _WORDS.get(concept, ())
    said = [n for n, info in graph.symbols.items() if info.meaning and info.meaning.lower() in words]
    return next((found[0] for found in (named, said) if len(found) == 1), None)


def definitions(texts: Iterable[str], graph: Graph) -> tuple[list[str], list[str]]:
    """Relations between sizes, and those that say what D or N is, the latter as for `--map`."""
    sizes: list[str] = []
    meant: list[str] = []
    for text in texts:
        name, sign, _ = text.partition("=")
        own = name.strip() in ("D", "N") and name.strip() not in graph.symbols
        (meant if sign and own else sizes).append(text)
    return sizes, [text.replace("==", "=", 1) for text in meant]


def mapping(texts: Iterable[str], graph: Graph) -> dict[str, Expr | str]:
    """Read `s=T,h=d,F=flops.step,P=N`: names of a claim as formulas in the model's sizes, or as other names
    of a claim. Raises FormulaError.
    """
    found: dict[str, Expr | str] = {}
    for part in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        name, sign, formula = (word.strip() for word in part.partition("="))
        if not sign or not name or not formula:
            raise FormulaError(f"--map {part!r}: write the claim's name and the model's, as in --map s=T,h=d")
        own = formula not in graph.symbols and (formula in KEYS or formula in COUNTS or _KEY.match(formula))
        meant: Expr | str = formula if own else parse(formula, graph.symbols)
        if found.setdefault(name, meant) != meant:
            first, second = (m if isinstance(m, str) else to_text(m) for m in (found[name], meant))
            raise FormulaError(f"{name} is told twice, as {first} and as {second}")
    return found
