#!/usr/bin/env python3
"""That ranks really share the work: what each holds, reads, caches and sends, against formulas of its own.

The formulas start from the headers of the checkpoint and from what each tensor is for, and know nothing of the program.
They are held against the counters of real runs on the reference backend, which pads nothing, and against `braid plan`.
"""
import itertools
import json
import os
import unittest

import braid

TPS = (1, 2, 4, 8)


def part(n, index, parts):
    """Size of one of nearly equal parts, the first n % parts one longer."""
    return n // parts + (1 if index < n % parts else 0)


class Model:
    """What the formulas need of a model."""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = c = json.load(file)
        self.header, _ = braid.read_header(os.path.join(folder, "model.safetensors"))
        self.layers, self.hidden, self.vocab = c["num_hidden_layers"], c["hidden_size"], c["vocab_size"]
        self.tied = c.get("tie_word_embeddings", False)
        self.latent = c.get("kv_lora_rank")
        self.kv_heads = c["num_key_value_heads"]
        moe = "n_routed_experts" in c or "num_local_experts" in c
        self.n_dense = c.get("first_k_dense_replace", 0) if moe else self.layers
        self.has_shared_expert = bool(c.get("n_shared_experts"))

    def share(self, name, shape, rank, tp):
        """Elements of a tensor that a rank holds: by what the tensor is for."""
        whole = 1
        for n in shape:
            whole *= n
        kind = name.rsplit(".", 2)[-2]
        if kind in ("embed_tokens", "lm_head"):                                   # rows of the vocabulary
            return part(shape[0], rank, tp) * shape[1]
        if kind in ("q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj"):   # rows: heads, or feed-forward columns
            assert shape[0] % tp == 0
            return whole // tp
        if kind in ("k_proj", "v_proj"):                                          # whole heads, several ranks with one
            return whole // min(tp, self.kv_heads)
        if kind in ("o_proj", "down_proj"):                                       # columns
            assert shape[1] % tp == 0
            return whole // tp
        assert "norm" in kind or kind in ("q_a_proj", "kv_a_proj_with_mqa", "gate"), name
        return whole

    def is_read(self, name):
        return not (name.startswith("model.layers.") and int(name.split(".")[2]) >= self.layers)  # drafting layers

    def file_bytes(self, rank, tp):
        return sum(self.share(name, t["shape"], rank, tp) * braid.ELEMENT_BYTES[t["dtype"]]
                   for name, t in self.header.items() if self.is_read(name))

    def rope_lanes(self):
        return self.config.get("qk_rope_head_dim") or self.config["head_dim"]

    def weights_bytes(self, rank, tp, positions):
        """Matrices stay as they are stored; vectors (norms, the router's bias) become float32. The key half of kv_b_proj is
        kept from both sides: to absorb a query, and to expand latents."""
        total = positions * self.rope_lanes() * 4  # a cosine and a sine for every pair of lanes
        for name, t in self.header.items():
            if not self.is_read(name):
                continue
            size = braid.ELEMENT_BYTES[t["dtype"]] if len(t["shape"]) > 1 else 4
            times = 2 if self.tied and "embed_tokens" in name else 1  # as a table and as the head's product
            total += times * size * self.share(name, t["shape"], rank, tp)
            if "kv_b_proj" in name:
                nope, value = self.config["qk_nope_head_dim"], self.config["v_head_dim"]
                total += size * self.share(name, t["shape"], rank, tp) * nope // (nope + value)
        return total

    def kv_lanes(self, tp):
        """Cached elements of one token on one rank, all layers."""
        if self.latent:
            return self.layers * (self.latent + self.config["qk_rope_head_dim"])  # one row for all heads, on every rank
        return self.layers * 2 * self.config["head_dim"] * max(1, self.kv_heads // tp)

    def collectives(self, rank, tp, steps, rows, logit_rows, reproducible=False):
        """Name to (calls, bytes sent by this rank); sums of rows of `hidden` are float32."""
        line = self.hidden * 4 if tp > 1 else 0
        sent = {"kv_blocks": (1, 8 if tp > 1 else 0),
                "attn_out": (steps * self.layers, rows * line * self.layers),
                "embed": (steps, rows * line), "logits": (steps, logit_rows * part(self.vocab, rank, tp) * 4 if tp > 1 else 0)}
        if tp == 1:  # a table that is whole needs no sum
            del sent["embed"], sent["logits"]
        if self.n_dense:
            sent["mlp_down"] = (steps * self.n_dense, rows * line * self.n_dense)
        if self.n_dense < self.layers:
            n = self.layers - self.n_dense
            twice = 2 if reproducible and self.has_shared_expert else 1  # the shared expert has a tree of its own
            sent["moe_out"] = (steps * n, rows * line * n * twice)
        return sent


class Ranks(braid.TestCase):
    """Each fixture at each width: plan, counters and formulas agree for every rank."""

    def check(self, name, tp):
        model = Model(braid.fixture(name))
        folder = self.model_copy(braid.fixture(name), without=("long.safetensors",))
        prompts = braid.prompts_of(os.path.join(folder, "reference.safetensors"))
        words = ["-tp", tp, "--num-kv-blocks", 40, "--block-size", 16]
        plan = self.expect(braid.run("plan", "--model", folder, "--json", *words)).json()
        self.assertEqual(len(plan["ranks"]), tp)
        self.assertEqual(plan["kv_tokens"], 640)
        # One short prompt: the reference backend is slow.
        reference = braid.read_safetensors(os.path.join(folder, "reference.safetensors"))
        short = self.path("short.safetensors")
        braid.write_safetensors(short, {n: t for n, t in reference.items() if n.endswith("_0")})
        report = self.expect(braid.run("verify", "--model", folder, "--dtype", "float32", "--reference", short, "--device", "reference",
                                       "--modes", "full,chunk:2", "--json", *words)).json()
        n_greedy = len(reference["greedy_0"].values())
        rows = len(prompts[0]) + n_greedy - 1
        steps = {"full": n_greedy, "chunk:2": (len(prompts[0]) + 1) // 2 + n_greedy - 1}
        for mode in report["modes"]:
            self.assertEqual(mode["counters"]["steps"], steps[mode["mode"]])
            self.assertEqual([r["rank"] for r in mode["ranks"]], list(range(tp)))
            for rank, counters in enumerate(mode["ranks"]):
                context = f"{name} tp {tp} rank {rank} {mode['mode']}"
                self.assertEqual(counters["bytes_read"], model.file_bytes(rank, tp), context)
                self.assertEqual(counters["weights_bytes"], model.weights_bytes(rank, tp, 4096), context)
                self.assertEqual(counters["cache_bytes"], 640 * model.kv_lanes(tp) * 4, context)
                self.assertEqual(counters["kv_rows_written"], rows, context)
                self.assertEqual(counters["kv_rows_read"], self.rows_read(len(prompts[0]), n_greedy, mode["mode"], model.latent), context)
                sent = {n: (c["calls"], c["bytes"]) for n, c in counters["collectives"].items()}
                self.assertEqual(sent, model.collectives(rank, tp, steps[mode["mode"]], rows, rows), context)
        for rank, planned in enumerate(plan["ranks"]):
            context = f"{name} tp {tp} rank {rank} planned"
            self.assertEqual(planned["rank"], rank)
            self.assertEqual(planned["file_bytes"], model.file_bytes(rank, tp), context)
            self.assertEqual(planned["weights_bytes"], model.weights_bytes(rank, tp, 4096), context)
            self.assertEqual(planned["kv_bytes_per_token"], model.kv_lanes(tp) * 2, context)
            self.assertEqual(planned["kv_bytes"], 640 * model.kv_lanes(tp) * 2, context)
            sent = {n: (c["calls"], c["bytes"]) for n, c in planned["decode_collectives"].items()}
            wanted = model.collectives(rank, tp, 1, 1, 1)
            del wanted["kv_blocks"]  # the plan decides alone
            self.assertEqual(sent, wanted, context)

    def rows_read(self, n_prompt, n_greedy, mode, latent):
        """The lengths of the sequence after each step, added up. A latent prompt's first tokens attend to each other without
        the cache; behind a context chunks of two are too short to."""
        chunk = 2 if mode == "chunk:2" else n_prompt
        lengths = [min(i + chunk, n_prompt) for i in range(0, n_prompt, chunk)] + [n_prompt + j for j in range(1, n_greedy)]
        return sum(lengths) - (min(chunk, n_prompt) if latent and min(chunk, n_prompt) > 1 else 0)

    def test_ranks_cover_the_checkpoint(self):
        # The formula itself: what is cut adds up to the whole, at every width.
        for name, tp in itertools.product(braid.ARCHITECTURES, TPS):
            model = Model(braid.fixture(name))
            for tensor, t in model.header.items():
                held = [model.share(tensor, t["shape"], rank, tp) for rank in range(tp)]
                whole = model.share(tensor, t["shape"], 0, 1)
                copies = 1
                if len(t["shape"]) == 1 or tensor.rsplit(".", 2)[-2] in ("q_a_proj", "kv_a_proj_with_mqa", "gate"):
                    copies = tp
                elif tensor.rsplit(".", 2)[-2] in ("k_proj", "v_proj"):
                    copies = tp // min(tp, model.kv_heads)
                self.assertEqual(sum(held), copies * whole, (name, tp, tensor))


for _name, _tp in itertools.product(braid.ARCHITECTURES, TPS):
    setattr(Ranks, f"test_{_name}_tp{_tp}", lambda self, name=_name, tp=_tp: self.check(name, tp))


class Demo(braid.TestCase):
    """The trained model, with a drafting layer that is left alone and types that differ from tensor to tensor."""

    def test_generate(self):
        model = Model(braid.DEMO)
        n_skipped = sum(not model.is_read(name) for name in model.header)
        self.assertGreater(n_skipped, 0)
        for tp, reproducible in ((2, False), (4, True)):
            words = ["-tp", tp, "--num-kv-blocks", 16] + (["--reproducible"] if reproducible else [])
            result = self.expect(braid.run("generate", "--model", braid.DEMO, "--prompt", "Hello there, how", "--max-tokens", 5, "--json", *words))
            answer = result.json()
            self.assertEqual(answer["finish_reason"], "length")
            self.assertIn(f"{n_skipped} tensors left unread", result.err)
            rows = answer["usage"]["prompt_tokens"] + 4
            # Only the last row of a prompt goes through the head.
            wanted = {n: [c] for n, c in model.collectives(0, tp, 5, rows, 5, reproducible).items()}
            self.assertEqual(braid.collectives_in(result.err), wanted)
            for rank in range(tp):
                self.assertIn(f"rank {rank}: read {model.file_bytes(rank, tp)} B", result.err)
            self.assertIn(f"cache {16 * 16 * model.kv_lanes(tp) * 2} B", result.err)

    def test_plan(self):
        model = Model(braid.DEMO)
        for tp in TPS:
            plan = self.expect(braid.run("plan", "--model", braid.DEMO, "-tp", tp, "--json")).json()
            for rank, planned in enumerate(plan["ranks"]):
                self.assertEqual(planned["weights_bytes"], model.weights_bytes(rank, tp, 16384))
                self.assertEqual(planned["file_bytes"], model.file_bytes(rank, tp))
                self.assertEqual(planned["kv_bytes_per_token"], 6 * 80 * 2)

    def test_uneven_vocabulary(self):
        # 1,531 rows over 8 ranks: three ranks hold one row more.
        folder = self.model_copy(braid.DEMO, without=("model.safetensors", "config.json"))
        tensors = braid.read_safetensors(os.path.join(braid.DEMO, "model.safetensors"))
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            t = tensors[name]
            tensors[name] = braid.Stored(t.dtype, [1531, 192], t.data[:1531 * 192 * 2])
        braid.write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
        with open(os.path.join(braid.DEMO, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config["vocab_size"] = 1531
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        model, wanted = Model(folder), None
        for tp in (1, 2, 8):
            plan = self.expect(braid.run("plan", "--model", folder, "-tp", tp, "--json")).json()
            self.assertEqual([r["file_bytes"] for r in plan["ranks"]], [model.file_bytes(rank, tp) for rank in range(tp)])
            answer = self.expect(braid.run("generate", "--model", folder, "--prompt", "What is", "--max-tokens", 8, "--json", "--reproducible", "-tp", tp))
            wanted = wanted or answer.out
            self.assertEqual(answer.out, wanted)


class PlannedModels(braid.TestCase):
    """The KV cache of released models, and what tensor parallelism divides."""

    def kv_bytes(self, model, tp, *words):
        plan = self.expect(braid.run("plan", "--model", model, "-tp", tp, "--json", *words)).json()
        sizes = {r["kv_bytes_per_token"] for r in plan["ranks"]}
        self.assertEqual(len(sizes), 1)
        return sizes.pop(), plan

    def test_latent_rows_are_whole_on_every_rank(self):
        for config, wanted, tps in (("deepseek-r1.json", 61 * (512 + 64) * 2, (1, 8, 16)), ("deepseek-v2-lite.json", 27 * (512 + 64) * 2, (1, 2, 4, 8))):
            for tp in tps:
                self.assertEqual(self.kv_bytes(os.path.join(braid.CONFIGS, config), tp)[0], wanted)
            self.assertEqual(self.kv_bytes(os.path.join(braid.CONFIGS, config), 1, "--kv-cache-dtype", "float32")[0], 2 * wanted)
        self.assertEqual(61 * 576 * 2, 70272)
        self.assertEqual(27 * 576 * 2, 31104)

    def test_grouped_heads_are_divided(self):
        config = self.write_json("config.json", {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "head_dim": 128,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "hidden_act": "silu"})
        whole = 32 * 2 * 8 * 128 * 2
        for tp in (1, 2, 4, 8):
            self.assertEqual(self.kv_bytes(config, tp)[0], whole // tp)
        for tp in (16, 32):  # more ranks than heads: neighbours hold the same one
            self.assertEqual(self.kv_bytes(config, tp)[0], whole // 8)

    def test_memory(self):
        config = os.path.join(braid.CONFIGS, "deepseek-v2-lite.json")
        _, g = self.kv_bytes(config, 8, "--memory", "40G", "--gpu-memory-utilization", "0.5")
        _, gib = self.kv_bytes(config, 8, "--memory", "40GiB", "--gpu-memory-utilization", "0.5")
        for plan, memory in ((g, 40 * 10**9), (gib, 40 * 2**30)):
            rank = plan["ranks"][0]
            blocks = (memory // 2 - rank["weights_bytes"] - rank["workspace_bytes"]) // (16 * 31104)
            self.assertEqual(plan["kv_tokens"], 16 * blocks)
            self.assertEqual(rank["kv_bytes"], 16 * blocks * 31104)
        self.assertGreater(gib["kv_tokens"], g["kv_tokens"])

    def test_it_is_quick(self):
        # 671 billion parameters, and what is replicated: in float8 with a scale for 128, as the checkpoint has them, or bfloat16.
        for quantization, size in (("auto", 1 + 4 / 128), ("none", 2)):
            result = self.expect(braid.run("plan", "--model", os.path.join(braid.CONFIGS, "deepseek-r1.json"), "-tp", 8, "--json",
                                           "--device", "cpu", "--quantization", quantization))
            total = sum(r["weights_bytes"] for r in result.json()["ranks"])
            self.assertGreater(total, 671e9 * size)
            self.assertLess(total, 1.1 * 671e9 * size)
            self.assertLess(result.seconds, 20)


if __name__ == "__main__":
    unittest.main()
