"""A hundred strings that tokenizers disagree about."""

import random

_BY_HAND = [
    "Hello, world!",
    " leading space",
    "trailing space ",
    "two  spaces   three",
    "\ttab\tseparated\t",
    "line\nline\n\nline",
    "\r\nwindows\r\nlines\r\n",
    " \n \n  \t ",
    "It's we're I'll you'd they've I'm don't IT'S WE'RE",
    "2024-01-31 12:59:07.123456",
    "3.14159 1,234,567 0x1F 1e-9 007",
    "a1b22c333d4444",
    "٣٤٥ ½ ² ⅷ Ⅻ",
    "Größe Fußgänger Äpfel ÜBER",
    "naïve façade coöperate résumé",
    "e\u0301 combining, \u00e9 composed",
    "Ελληνικά και Русский и עברית و العربية",
    "हिन्दी में लिखा है",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "ไม่มีช่องว่างระหว่างคำ",
    "🙂 👩‍👩‍👧‍👦 🇩🇪 ✋🏽",
    "\u200bzero\u200dwidth\ufeff",
    "\u00a0non\u00a0breaking\u2003em space",
    "\u2581 a block \u2581\u2581 like this",
    "def f(x):\n    return {k: v for k, v in x.items()}  # note\n",
    "int main(void) { printf(\"%d\\n\", 1 << 4); return 0; }",
    "SELECT * FROM t WHERE a >= 3 AND b != 'x';",
    "<html><body class=\"a\">&amp;</body></html>",
    "\\frac{1}{2} \\sum_{i=0}^{n} x_i",
    "https://example.org/a/b?c=d&e=f#g",
    "user.name+tag@example.co.uk",
    "C:\\Users\\name\\file.txt /usr/local/bin",
    "...!!!???---___***",
    "({[<>]})",
    "CamelCaseWords snake_case_words kebab-case-words",
    "ALLCAPS lower Title mIxEd",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "        eight spaces of indent",
    "\x00\x01\x02 control \x7f",
    "\ud7ff \ue000 \U0010ffff",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>",
    "text<|endoftext|>more",
    "<|endoftext|>",
    "<|im_start|><|im_end|>",
    "almost <|im_start |> a <| im_end|> token",
    "user: What? assistant: That.",
    "1. First\n2. Second\n   - nested\n",
    "| a | b |\n|---|---|\n| 1 | 2 |",
]
_PARTS = (
    "the of and to in a is that for it".split()
    + ["Ünïcödé", "東京", "🙂", "123", "4", "def", "==", "'s", "'ll", "I'M"]
    + [" ", "  ", "\n", "\n\n", "\t", "\r\n", ".", ",", "!", "?", "-", "_"]
    + ["<|im_end|>", "\u00a0", "\u0301", "x1y"]
)


def strings() -> list[str]:
  """By hand, and as many put together by chance."""
  rng = random.Random(0)
  made = [
      "".join(rng.choices(_PARTS, k=rng.randint(2, 25)))
      for _ in range(100 - len(_BY_HAND))
  ]
  return _BY_HAND + made
