"""Small tokenizers of every kind that braid reads, made with Hugging Face's library, and texts to try them on.

Used by tools/tokenizer_cases.py (golden data) and tests/oracle/tokenizer_oracle.py (live comparison).
"""

import itertools
import json
import random
import struct
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""
)
DEEPSEEK_CJK = "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
KIMI = (
    r"""[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
    r"""[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)

WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so "
    "these would other into has more her two like him see time could no make than first been its who now people my "
    "made over did down only way find use may water long little very after words called just where most know "
    "don't we'll I'M it's you've he'd THEY'RE Tokenizer snake_case camelCase HTTPServer x86_64 int main() {return 0;} "
    "naïve café Übergröße größer élève déjà señor mañana Straße łódź žluťoučký привет мир Москва слово который "
    "να είναι που ελληνικά 日本語 テキスト ひらがな カタカナ 中文 字符 你好 世界 我们 中国 한국어 안녕하세요 세계 "
    "مرحبا بالعالم العربية שלום עולם हिन्दी नमस्ते दुनिया ภาษาไทย สวัสดี 1 2 3 10 12 123 2024 3.14 1,000,000 "
    "👩‍👩‍👧‍👦 🇩🇪 ✨ 👍🏽 € £ ¥ © ™ ½ Ⅷ ٣ ... --- === !? :) http://example.com/a?b=c&d=%20e ﬁne ｆｕｌｌ ①"
).split()

# PCRE2 10.42 and Python 3.11 share Unicode 14; what was unassigned then differs between tools by nature, and is all
# that is left out.
ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
PRIVATE = [0xE000, 0xF8FF, 0xF0000, 0x10FFFD]
BLANKS = list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000")
ODD = list("\u200b\u200c\u200d\ufeff\u180e\ufffd\u0000\u0001\u007f\u00ad\u2060'’ʼ_-.,!?<>|▁Ġ#@/\\\"%&()[]{}~`^$*+=;:")
MARKS = list("\u0300\u0301\u0308\u0327\u0345\u093e\u0bd7\u1ab0\u20dd\u3099\u0338\u0483")


def corpus(seed=1):
    r = random.Random(seed)
    return [" ".join(r.choice(WORDS) for _ in range(r.randint(3, 20))) for _ in range(1500)]


def random_text(r, extra=()):
    """Extra: strings of special interest to a tokenizer, such as its added tokens."""
    parts = []
    for _ in range(r.choice([0, 1, 1, 2, 3, 5, 8, 13, 30])):
        kind = r.random()
        if kind < 0.30:
            parts.append(r.choice(WORDS))
        elif kind < 0.52:
            parts.append(" " if r.random() < 0.7 else r.choice(BLANKS) * r.choice([1, 1, 2, 3, 7]))
        elif kind < 0.62:
            parts.append(chr(r.choice(ASSIGNED)))
        elif kind < 0.66:
            parts.append("".join(chr(r.choice(ASSIGNED)) for _ in range(r.randint(2, 6))))
        elif kind < 0.74:
            parts.append(r.choice(ODD))
        elif kind < 0.79:
            parts.append(str(r.randint(0, 10 ** r.randint(1, 9))))
        elif kind < 0.84:
            parts.append(r.choice("aeoAcnu가のか") + "".join(r.choice(MARKS) for _ in range(r.randint(1, 3))))
        elif kind < 0.88:
            parts.append(r.choice("abXY中é") * r.choice([2, 5, 20, 90]))
        elif kind < 0.90:
            parts.append(chr(r.choice(PRIVATE)))
        elif kind < 0.97 and extra:
            parts.append(r.choice(extra))
        else:
            parts.append("".join(r.choice("abcdefgh \n.,'1A") for _ in range(r.randint(1, 12))))
    return "".join(parts)


SPECIALS = [
    AddedToken("<|bos|>", special=True, normalized=False),
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("<mask>", special=True, lstrip=True, normalized=False),
    AddedToken("<right>", special=True, rstrip=True, normalized=False),
    AddedToken("Word", special=False, single_word=True, normalized=False),
    AddedToken("NoRmal", special=False, normalized=True),
    AddedToken("<both>", special=False, lstrip=True, rstrip=True, single_word=True, normalized=True),
]


def surround(t, before, after=()):
    ids = {n: t.token_to_id(n) for n in [*before, *after]}
    t.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", "$B", *after], special_tokens=list(ids.items())
    )


def train(t, trainer):
    t.train_from_iterator(corpus(), trainer)
    return t


def with_model(t, **fields):
    """Sets fields of the model (or, with a dotted name, of another part) that the library offers no setter for."""
    data = json.loads(t.to_str())
    data["model"].update(fields)
    return Tokenizer.from_str(json.dumps(data))


def byte_level(pre, normalizer=None, specials=(), vocab_size=1500, **fields):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    train(t, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens(list(specials))
    return with_model(t, **fields) if fields else t


def by_pattern(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ])


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), specials=SPECIALS)


def roberta():
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), specials=[*SPECIALS, "<s>", "</s>"])
    t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))
    return t


def llama3():
    t = byte_level(by_pattern(LLAMA3), specials=SPECIALS, ignore_merges=True)
    surround(t, ["<|bos|>"])
    return t


def qwen2():
    return byte_level(by_pattern(QWEN2), normalizers.NFC(), SPECIALS)


def o200k():
    return byte_level(by_pattern(O200K), specials=SPECIALS[:3])


def cl100k():
    return byte_level(by_pattern(CL100K))


def kimi():
    return byte_level(by_pattern(KIMI), specials=SPECIALS[:3])


def deepseek_v3():
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex(DEEPSEEK_CJK), "isolated"),
        pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ])
    t = byte_level(pre, specials=SPECIALS)
    surround(t, ["<|bos|>"])
    return t


BYTE_TOKENS = [f"<0x{b:02X}>" for b in range(256)]


def sentencepiece_bpe(t, fuse_unk=True):
    train(t, trainers.BpeTrainer(vocab_size=1300, show_progress=False, limit_alphabet=150,
                                 special_tokens=["<unk>", "<s>", "</s>", *BYTE_TOKENS]))
    data = json.loads(t.to_str())  # byte tokens are ordinary vocabulary there
    data["added_tokens"] = [a for a in data["added_tokens"] if not a["content"].startswith("<0x")]
    data["model"].update(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=True)
    return Tokenizer.from_str(json.dumps(data))


def llama2():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    ])
    t = sentencepiece_bpe(t)
    t.add_tokens(SPECIALS)
    surround(t, ["<s>"])
    return t


def llama2_metaspace():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    ])
    t = sentencepiece_bpe(t)
    t.add_tokens(SPECIALS)
    surround(t, ["<s>"], ["</s>"])
    return t


def gemma():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t = sentencepiece_bpe(t)
    t.add_tokens(SPECIALS)
    return t


def bpe_unknown(fuse):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    train(t, trainers.BpeTrainer(vocab_size=800, show_progress=False, limit_alphabet=60, special_tokens=["<unk>"]))
    return t


def bpe_prefix():
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    t.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    t.decoder = decoders.WordPiece(cleanup=False)
    train(t, trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=["<unk>"],
                                 continuing_subword_prefix="##", limit_alphabet=200))
    return t


def clip():
    t = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence([
        normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()
    ])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)
    ])
    t.decoder = decoders.BPEDecoder()
    train(t, trainers.BpeTrainer(vocab_size=1200, show_progress=False, end_of_word_suffix="</w>",
                                 special_tokens=["<|endoftext|>"],
                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens(SPECIALS)
    return t


def bert(lowercase=True, **options):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase, **options)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    train(t, trainers.WordPieceTrainer(vocab_size=1500, show_progress=False,
                                       special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t.add_tokens(SPECIALS)
    t.post_processor = processors.BertProcessing(("[SEP]", t.token_to_id("[SEP]")), ("[CLS]", t.token_to_id("[CLS]")))
    return t


def unigram(pre, normalizer=None, byte_fallback=False, decoder=None):
    t = Tokenizer(models.Unigram())
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.decoder = decoder or decoders.Metaspace()
    train(t, trainers.UnigramTrainer(vocab_size=900, show_progress=False, special_tokens=["<pad>", "</s>", "<unk>"],
                                     unk_token="<unk>"))
    if byte_fallback:
        data = json.loads(t.to_str())
        data["model"]["vocab"] += [[b, 0.0] for b in BYTE_TOKENS]
        data["model"]["byte_fallback"] = True
        t = Tokenizer.from_str(json.dumps(data))
    t.add_tokens(SPECIALS)
    return t


def t5():
    t = unigram(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
                normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]))
    surround(t, [], ["</s>"])
    return t


def unigram_bytes():
    return unigram(pre_tokenizers.Metaspace(prepend_scheme="first"), normalizers.Strip(), True,
                   decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]))


def charsmap(entries):
    """SentencePiece's compiled map: a double-array trie (as Darts-clone lays it out) and the replacements."""
    blob, trie = b"", {}
    for key, value in entries.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = len(blob)
        blob += value.encode() + b"\0"
    units, used = {}, {0}

    def place(position, node):
        labels = [0 if c is None else c for c in node]
        base = next(b for b in itertools.count(1) if all(b ^ c not in used for c in labels))
        used.update(base ^ c for c in labels)
        units[position] = units.get(position, 0) | (position ^ base) << 10 | (None in node) << 8
        for c, child in node.items():
            if c is None:
                units[base] = child | 1 << 31
            else:
                units[base ^ c] = c
                place(base ^ c, child)

    place(0, trie)
    array = [units.get(i, 0) for i in range(max(units) + 256)]
    return struct.pack(f"<I{len(array)}I", 4 * len(array), *array) + blob


def precompiled():
    entries = {chr(c): unicodedata.normalize("NFKC", chr(c)) for c in [*range(0xFF01, 0xFF5F), *range(0x2460, 0x2474)]}
    entries |= {"\t": " ", "\n": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "ﬁ": "fi", "e\u0301": "é", "a\u0308": "ä",
                "a": "a", "か\u3099": "が", "½": "1⁄2", "\u0301": "", "👩": "w", "\u200d": " "}
    return unigram(pre_tokenizers.Metaspace(), normalizers.Sequence([
        normalizers.Precompiled(charsmap(entries)), normalizers.Replace(Regex(" {2,}"), " ")]))


def word_level():
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Punctuation("merged_with_previous")
    ])
    return train(t, trainers.WordLevelTrainer(special_tokens=["[UNK]"], show_progress=False))


def split_kind(behavior, invert, digits):
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\s*[,.\-]+|\d+|\bof\b|\w\W(?=\w)"), behavior, invert), pre_tokenizers.Punctuation(behavior),
        pre_tokenizers.Digits(individual_digits=digits), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ])
    return byte_level(pre, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), SPECIALS, 700)


KINDS = {
    "gpt2": gpt2, "roberta": roberta, "llama3": llama3, "qwen2": qwen2, "o200k": o200k, "cl100k": cl100k, "kimi": kimi,
    "deepseek_v3": deepseek_v3, "llama2": llama2, "llama2_metaspace": llama2_metaspace, "gemma": gemma,
    "bpe_unknown": lambda: bpe_unknown(False), "bpe_unknown_fused": lambda: bpe_unknown(True), "bpe_prefix": bpe_prefix,
    "clip": clip, "bert": bert, "bert_cased": lambda: bert(False, strip_accents=False, handle_chinese_chars=False),
    "t5": t5, "unigram_bytes": unigram_bytes, "precompiled": precompiled, "word_level": word_level,
    "split_removed": lambda: split_kind("removed", False, True),
    "split_isolated": lambda: split_kind("isolated", True, False),
    "split_previous": lambda: split_kind("merged_with_previous", False, False),
    "split_next": lambda: split_kind("merged_with_next", False, True),
    "split_contiguous": lambda: split_kind("contiguous", True, False),
}


def extras(t):
    return [a.content for a in t.get_added_tokens_decoder().values()] + ["normal", "NORMAL", "word", "Words", "</w>"]
