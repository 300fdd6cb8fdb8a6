#!/usr/bin/env python3
"""braid plan against bytes computed by hand from the published configurations: weights, KV and what a decode step sends, with
and without query replication and projection before the merge, for both merge backends.
"""
import json
import os
import unittest

import braid

BF16, F32 = 2, 4
TP = DCP = 8
MEMORY = 256 * 10**9
# name: (file, what the dense part of it reads as)
MODELS = {"deepseek-r1": None, "deepseek-v2-lite": None, "glm-5.2": '{"model_type": "deepseek_v3"}'}


def config(name):
    with open(os.path.join(braid.CONFIGS, name + ".json")) as f:
        return json.load(f)


def padded(n):
    return (n + 15) // 16 * 16


def weights_bytes(c, tp, dcp, replicate, project):
    """One rank's. Norms, biases and the rotation table are float32, all else is bfloat16."""
    hidden, heads, layers = c["hidden_size"], c["num_attention_heads"], c["num_hidden_layers"]
    latent, rope, nope, value = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    own = heads // tp
    query_heads = own * dcp if replicate else own
    value_heads = own * dcp if project else own
    q_lora = c["q_lora_rank"]
    if q_lora:
        attention = hidden * q_lora * BF16 + q_lora * F32 + query_heads * (nope + rope) * q_lora * BF16
    else:
        attention = query_heads * (nope + rope) * hidden * BF16
    attention += (latent + rope) * hidden * BF16 + latent * F32          # one key/value row, on every rank
    attention += query_heads * nope * latent * BF16                      # W_UK
    attention += value_heads * value * latent * BF16                     # W_UV
    attention += own * nope * latent * BF16                              # W_UK once more, to expand latents in prefill
    attention += hidden * own * value * BF16                             # output
    experts, width = c["n_routed_experts"], c["moe_intermediate_size"]
    moe = experts * hidden * BF16 + (experts * F32 if c["topk_method"] == "noaux_tc" else 0)
    moe += 3 * hidden * width // tp * (experts + c["n_shared_experts"]) * BF16
    dense = 3 * hidden * c["intermediate_size"] // tp * BF16
    n_dense = c["first_k_dense_replace"]
    table = c["max_position_embeddings"] * rope * F32
    ends = 2 * c["vocab_size"] // tp * hidden * BF16 + hidden * F32
    return ends + table + layers * (attention + 2 * hidden * F32) + n_dense * dense + (layers - n_dense) * moe


def dcp_collectives(c, tp, dcp, backend, replicate, project):
    """{name: (calls, bytes from one rank)} of a decode step with one token."""
    layers, own = c["num_hidden_layers"], c["num_attention_heads"] // tp
    width = c["v_head_dim"] if project else c["kv_lora_rank"]
    sent = {}
    if not replicate:
        sent["dcp_q"] = (layers, layers * own * (c["kv_lora_rank"] + c["qk_rope_head_dim"]) * BF16)
    if backend == "a2a":
        sent["dcp_merge"] = (layers, layers * dcp * (padded(own * width * BF16) + padded(own * F32)))
    else:
        sent["dcp_lse"] = (layers, layers * own * dcp * F32)
        sent["dcp_merge"] = (layers, layers * own * dcp * width * F32)
    return sent


class Plan(braid.TestCase):
    def plan(self, name, *arguments):
        overrides = ["--hf-overrides", MODELS[name]] if MODELS[name] else []
        return self.expect(braid.run("plan", "--model", os.path.join(braid.CONFIGS, name + ".json"), "--json", "--memory", "256G",
                                     "--dtype", "bfloat16", "--quantization", "none", *overrides, *arguments)).json()

    def test_every_variant_by_hand(self):
        for name in MODELS:
            c = config(name)
            plan = self.plan(name, "-tp", TP, "-dcp", DCP)
            per_token = c["num_hidden_layers"] * (c["kv_lora_rank"] + c["qk_rope_head_dim"]) * BF16
            rank = plan["ranks"][0]
            self.assertEqual(rank["kv_bytes_per_token"] * DCP, per_token)
            self.assertEqual(len(plan["variants"]), 8)
            for v in plan["variants"]:
                backend, replicate, project = v["comm_backend"], v["enable_query_replication"], v["enable_project_before_merge"]
                with self.subTest(model=name, backend=backend, replicate=replicate, project=project):
                    self.assertEqual(v["weights_bytes"], weights_bytes(c, TP, DCP, replicate, project))
                    wanted = {n: {"calls": calls, "bytes": b} for n, (calls, b) in dcp_collectives(c, TP, DCP, backend, replicate, project).items()}
                    self.assertEqual({n: count for n, count in v["decode_collectives"].items() if n.startswith("dcp_")}, wanted)
                    # What the step's activations leave: blocks of 16 rows, 128 tokens.
                    block = per_token // DCP * 128
                    most = (MEMORY * 9 // 10 - v["weights_bytes"]) // block * 128
                    self.assertLess(v["kv_tokens"], most)
                    self.assertGreater(v["kv_tokens"], most - (3 << 30) // block * 128)
            active = [v for v in plan["variants"] if (v["comm_backend"], v["enable_query_replication"], v["enable_project_before_merge"]) == ("a2a", True, True)]
            self.assertEqual(active[0]["kv_tokens"], plan["kv_tokens"])
            self.assertEqual(active[0]["weights_bytes"], rank["weights_bytes"])

    def test_the_group_divides_the_cache_and_nothing_else(self):
        c = config("deepseek-r1")
        off = '{"enable_query_replication": false, "enable_project_before_merge": false}'
        one, eight = self.plan("deepseek-r1", "-tp", TP), self.plan("deepseek-r1", "-tp", TP, "-dcp", DCP, "--dcp-config", off)
        self.assertEqual(one["variants"], [])
        self.assertEqual(one["ranks"][0]["weights_bytes"], weights_bytes(c, TP, 1, False, False))
        self.assertEqual(one["ranks"][0]["weights_bytes"], eight["ranks"][0]["weights_bytes"])
        self.assertEqual(one["ranks"][0]["kv_bytes_per_token"], DCP * eight["ranks"][0]["kv_bytes_per_token"])
        self.assertGreater(eight["kv_tokens"], 7.9 * one["kv_tokens"])

    def test_fast(self):
        result = braid.run("plan", "--model", os.path.join(braid.CONFIGS, "deepseek-r1.json"), "-tp", 8, "-dcp", 8, "--memory", "141G")
        self.expect(result)
        self.assertLess(result.seconds, 10)  # of it well under one of work; the machine may be busy
        self.assertIn("query replication", result.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
