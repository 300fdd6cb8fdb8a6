#!/usr/bin/env python3
"""Compares braid's tokenizer with Hugging Face's on random texts and random ids, for every kind of tokenizer.

    tests/oracle/tokenizer_oracle.py --driver build/release/bin/tokenizer_driver [--texts 10000] [--kind NAME ...]

--characters tries every character that Unicode 14 assigns instead, between two letters. Exit 77 (a skip for CTest)
with the reason when the library is not there.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
try:
    import tokenizer_kinds as kinds
except ImportError as e:
    print(f"skipped: Python's tokenizers library cannot be had ({e})")
    sys.exit(77)


def ask(driver, path, questions):
    text = "".join(json.dumps(q) + "\n" for q in questions)
    done = subprocess.run([driver, path], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def expected_answers(t, questions, texts):
    plain = t.encode_batch_fast(texts, add_special_tokens=False)
    full = t.encode_batch_fast(texts, add_special_tokens=True)
    for i in range(len(texts)):
        yield {"ids": full[i].ids, "plain": plain[i].ids}
    for q in questions[len(texts):]:
        yield {"decoded": t.decode(q["ids"], skip_special_tokens=False), "skip": t.decode(q["ids"])}


def make_questions(t, args, r):
    if args.characters:
        texts = [f"a{chr(c)}b {chr(c)}" for c in kinds.ASSIGNED]
        return texts, [{"text": x} for x in texts]
    extra = kinds.extras(t)
    texts = [kinds.random_text(r, extra) for _ in range(args.texts)]
    questions = [{"text": x} for x in texts]
    size = t.get_vocab_size() + 20  # a few ids beyond the vocabulary
    for _ in range(args.texts):
        ids = [r.randrange(size) for _ in range(r.randint(1, 12))]
        if r.random() < 0.5:
            ids = t.encode(r.choice(texts)).ids or ids
        if r.random() < 0.3:
            ids.insert(r.randrange(len(ids) + 1), r.randrange(size))
        questions.append({"ids": ids})
    return texts, questions


def compare(name, args, folder):
    t = kinds.KINDS[name]()
    path = os.path.join(folder, name + ".json")
    t.save(path)
    texts, questions = make_questions(t, args, random.Random(f"{name} {args.seed}"))
    answers = ask(args.driver, path, questions)
    n_bad = 0
    for question, want, got in zip(questions, expected_answers(t, questions, texts), answers, strict=True):
        if want != got:
            n_bad += 1
            if n_bad <= args.show:
                print(f"  {name}: {json.dumps(question, ensure_ascii=True)}\n    want {want}\n    got  {got}")
    print(f"{name}: {len(questions)} cases, {n_bad} differ", flush=True)
    return n_bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--driver", required=True)
    p.add_argument("--texts", type=int, default=10000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", type=int, default=3)
    p.add_argument("--characters", action="store_true")
    p.add_argument("--kind", nargs="*", default=list(kinds.KINDS))
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 1 if sum(compare(name, args, folder) for name in args.kind) else 0


if __name__ == "__main__":
    sys.exit(main())
