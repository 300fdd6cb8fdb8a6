#!/usr/bin/env python3
"""Regenerates tests/data/tokenizers: a small tokenizer of each kind with texts, their ids and decoded ids.

    tools/tokenizer_cases.py [KIND ...]

Needs Hugging Face's tokenizers library (made with 0.23.3). Training is not reproducible to the bit, so a run changes
the files even if nothing changed.
"""

import json
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tokenizer_kinds as kinds  # noqa: E402

N_TEXTS = 150
N_ID_LISTS = 60


def cases(name):
    t = kinds.KINDS[name]()
    r = random.Random(f"golden {name}")
    extra = kinds.extras(t)
    texts = ["", " ", "a", "Hello world", "  two  spaces\n\nand lines \n"] + [
        kinds.random_text(r, extra) for _ in range(N_TEXTS)]
    encoded = [{"text": x, "ids": t.encode(x).ids, "plain": t.encode(x, add_special_tokens=False).ids} for x in texts]
    lists = [r.choice(encoded)["ids"] for _ in range(N_ID_LISTS // 2)]
    lists += [[r.randrange(t.get_vocab_size() + 5) for _ in range(r.randint(1, 12))] for _ in range(N_ID_LISTS // 2)]
    decoded = [{"ids": i, "decoded": t.decode(i, skip_special_tokens=False), "skip": t.decode(i)} for i in lists if i]
    return {"tokenizer": json.loads(t.to_str()), "encode": encoded, "decode": decoded}


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "tokenizers")
    os.makedirs(folder, exist_ok=True)
    for name in sys.argv[1:] or kinds.KINDS:
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(cases(name), f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        print(name)


if __name__ == "__main__":
    main()
