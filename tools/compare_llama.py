#!/usr/bin/env python3
"""braid beside llama.cpp on the same weights: first what both say, then how fast, A B A B.

    tools/export_gguf.py bench/models/tiny-mla /tmp/tiny.gguf --random 1 --checkpoint /tmp/tiny
    tools/compare_llama.py --bench build/release/bin/cpu_e2e_bench --checkpoint /tmp/tiny --gguf /tmp/tiny.gguf \\
        --llama-bench PATH --llama-server PATH [--threads 2] [--rounds 3]

llama.cpp's programs are given by path; nothing of it is built or shipped here. Without --llama-server what both say is
not compared, and the output says so.
"""

import argparse
import json
import socket
import statistics
import subprocess
import time
import urllib.request

N_TOP = 10
CASES = {"prefill of 512 tokens": ("-p", 512), "prefill of 4,096 tokens": ("-p", 4096), "decoding": ("-n", 32)}


def ours(o):
    out = subprocess.run([o.bench, "--model", o.checkpoint, "--load-format", "auto", "--threads", str(o.threads), "--json"],
                         check=True, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    return {case: next(x["figure"] for x in lines if x["what"].startswith(case)) for case in CASES}


def theirs(o):
    figures = {}
    for case, (flag, n) in CASES.items():
        other = "-n" if flag == "-p" else "-p"
        out = subprocess.run([o.llama_bench, "-m", o.gguf, flag, str(n), other, "0", "-t", str(o.threads), "-ub", "512",
                              "-r", "3", "-o", "json"], check=True, capture_output=True, text=True).stdout
        figures[case] = json.loads(out)[0]["avg_ts"]
    return figures


def their_top(o, prompt):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen([o.llama_server, "-m", o.gguf, "--port", str(port), "-t", str(o.threads), "-c", "1024"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        body = json.dumps({"prompt": prompt, "n_predict": 1, "n_probs": N_TOP, "temperature": 0}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"})
        for _ in range(120):
            try:
                answer = json.load(urllib.request.urlopen(request, timeout=300))
                break
            except OSError:  # loading
                time.sleep(0.5)
        return {t["id"]: t["logprob"] for t in answer["completion_probabilities"][0]["top_logprobs"]}
    finally:
        server.kill()
        server.wait()


def compare_answers(o):
    with open(f"{o.checkpoint}/config.json", encoding="utf-8") as f:
        vocab = json.load(f)["vocab_size"]
    out = subprocess.run([o.bench, "--model", o.checkpoint, "--load-format", "auto", "--threads", str(o.threads), "--top",
                          str(N_TOP)], check=True, capture_output=True, text=True).stdout
    mine = {t["id"]: t["logprob"] for t in map(json.loads, out.splitlines())}
    yours = their_top(o, [i * 7919 % vocab for i in range(512)])
    common = mine.keys() & yours.keys()
    most = max((abs(mine[i] - yours[i]) for i in common), default=float("nan"))
    print(f"after 512 tokens: likeliest {max(mine, key=mine.get)} and {max(yours, key=yours.get)}, {len(common)} of {N_TOP} "
          f"in common, largest difference of a log-probability {most:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bench", "checkpoint", "gguf", "llama-bench"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--llama-server")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    o = parser.parse_args()
    if o.llama_server:
        compare_answers(o)
    else:
        print("what both say was not compared: no --llama-server")
    a, b = [], []
    for _ in range(o.rounds):
        a.append(ours(o))
        b.append(theirs(o))
    for case in CASES:
        x, y = (statistics.median(r[case] for r in runs) for runs in (a, b))
        print(f"{case:<26} braid {x:9.1f}   llama.cpp {y:9.1f} tokens/s   ratio {x / y:.2f}")


if __name__ == "__main__":
    main()
