#!/usr/bin/env python3
"""Writes src/text/unicode_exceptions.h: where utf8proc and the Unicode tables in Hugging Face's library disagree.

    tools/make_unicode_exceptions.py > src/text/unicode_exceptions.h

The library's Rust packages froze their tables at Unicode 8 to 13; tokenizers were trained with what those say.
"""

import ctypes
import ctypes.util
import sys

from tokenizers import normalizers, pre_tokenizers

PROC = ctypes.CDLL(ctypes.util.find_library("utf8proc"))
PROC.utf8proc_category_string.restype = ctypes.c_char_p
PROC.utf8proc_map.restype = ctypes.c_ssize_t
FREE = ctypes.CDLL(None).free
FREE.argtypes = [ctypes.c_void_p]
STABLE, COMPAT, COMPOSE, DECOMPOSE = 2, 4, 8, 16
FORMS = {"NFC": COMPOSE, "NFD": DECOMPOSE, "NFKC": COMPOSE | COMPAT, "NFKD": DECOMPOSE | COMPAT}
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def category(c):
    return PROC.utf8proc_category_string(c).decode()


def normal_form(form, text):
    raw, out = text.encode(), ctypes.c_void_p()
    n = PROC.utf8proc_map(raw, ctypes.c_ssize_t(len(raw)), ctypes.byref(out), STABLE | FORMS[form])
    result = ctypes.string_at(out, n).decode()
    FREE(out)
    return result


def not_normalized():
    found = set()
    for form in FORMS:
        theirs = getattr(normalizers, form)()
        for c in ALL:
            x = chr(c)
            probes = [x]
            if form in ("NFC", "NFD"):
                probes += ["a\u0345" + x, "a" + x + "\u0334", "a" + x + "\u0327", "a\u0327" + x]
            for probe in probes:
                if theirs.normalize_str(probe) != normal_form(form, probe):
                    found.add(c)
    # What would compose to such a character must be kept from it too.
    return found.union(*(map(ord, normal_form("NFD", chr(c))) for c in found if len(normal_form("NFD", chr(c))) > 1
                         and normal_form("NFC", normal_form("NFD", chr(c))) == chr(c)))


def differing(theirs, ours):
    return {c for c in ALL if theirs(c) != ours(category(c), c)}


def removed_by(normalizer):
    return lambda c: normalizer.normalize_str("a" + chr(c) + "b") == "ab"


def print_table(name, comment, characters):
    ranges = []
    for c in sorted(characters):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print(f"// {comment}\ninline constexpr CharacterRange {name}[] = {{")
    line = "   "
    for first, last in ranges:
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > 120:
            print(line)
            line = "   "
        line += item
    print(line + "\n};\n")


def main():
    punctuation = pre_tokenizers.Punctuation()
    bert = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    print("// Where utf8proc's tables and those of Hugging Face's library (older Unicode versions) disagree: for these\n"
          "// characters the category's answer is turned round. Made by tools/make_unicode_exceptions.py.\n"
          "#pragma once\n\nnamespace braid {\n\nstruct CharacterRange {\n  char32_t first, last;\n};\n")
    print_table("kNotNormalized", "Neither decomposed, reordered nor composed.", not_normalized())
    print_table("kMarkExceptions", "Category M*.",
                differing(removed_by(normalizers.StripAccents()), lambda k, c: k[0] == "M"))
    print_table("kNonspacingMarkExceptions", "Category Mn.", differing(removed_by(bert), lambda k, c: k == "Mn"))
    print_table("kOtherExceptions", "Categories Cc, Cf and Co.",
                {c for c in differing(removed_by(clean), lambda k, c: k in ("Cc", "Cf", "Co"))
                 if c not in (0x9, 0xA, 0xD, 0xFFFD)})
    print_table("kPunctuationExceptions", "Category P*.",
                {c for c in differing(lambda c: len(punctuation.pre_tokenize_str("a" + chr(c) + "b")) > 1,
                                      lambda k, c: k[0] == "P") if c >= 0x80})
    print("}  // namespace braid")


if __name__ == "__main__":
    sys.exit(main())
