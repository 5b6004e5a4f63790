"""What the live suite asks: thirty short prompts, the repetitive ones marked.

The first four are what every submission runs: a fact, prose, code to be copied, another script.
"""

from __future__ import annotations

CODE = "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n    return result"
TEXT = "The red house stands on the red hill, and the red door is open all day long."

COPYING = (
    f"Repeat this code exactly:\n\n{CODE}",
    f"Repeat this text three times: {TEXT}",
    f"Repeat this text with the word red changed to blue: {TEXT}",
    f"Repeat this code exactly, but with `total` changed to `sum_prices`:\n\n{CODE}",
    "Count from one to ten in digits, one number a line.",
    "Write the word banana eight times, separated by commas.",
    f"Quote this sentence and then explain it: {TEXT}",
    "Write the table of 3: 3 x 1 = 3, 3 x 2 = 6, and so on.",
)

LETTER = """\
Dear Anna,

thank you for the parcel that came on Monday. The red scarf is warm, and the red gloves fit well. \
On Friday we will go to the market in the old town, and on Sunday we will visit my mother.

Yours,
Tom"""
TABLE = (
    "name,city,age\nAnna,Paris,31\nBen,London,45\nClara,Rome,27\nDavid,Madrid,52\nElla,Berlin,38"
)
STORY = (
    "Once there was a fox who lived by the river. Every morning the fox went down to the river, "
    "drank, and looked at the other side. One morning there was a boat by the river, and the fox "
    "stepped in."
)

MATCHING = (
    f"Repeat this letter exactly:\n\n{LETTER}",
    f"Repeat this letter with the word Monday changed to Tuesday:\n\n{LETTER}",
    f"Quote the sentence of this letter about the market:\n\n{LETTER}",
    f"Translate nothing. Only repeat: {LETTER}",
    f"Copy this list and add one line for Frank from Vienna, 29 years old:\n\n{TABLE}",
    f"Repeat this story exactly:\n\n{STORY}",
    f"Repeat this story with the word fox changed to cat:\n\n{STORY}",
    f"Repeat this sentence five times: {TEXT}",
)
"""Edits, quotes and copies in which a prompt lookup finds matches, of the size that the model here
can do; not among the thirty."""

OTHER = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "请用中文介绍一下北京。",
    "List five fruits, one a line.",
    "把这句话重复一遍:今天天气很好,我们去公园散步。",
    "Write a Python function that reverses a string.",
    "Write a haiku about the sea 🌊 and use an emoji.",
    "Who wrote Hamlet? Answer with the name only.",
    "Say only: OK",
    "What do bees do in winter?",
    "Name three rivers in Europe.",
    "Give me a recipe for pancakes.",
    "Écris une phrase sur la pluie à Paris.",
    "Was ist der Unterschied zwischen Katzen und Hunden?",
    "Why do leaves change their colour in autumn?",
    "Write a short letter to a friend who has moved away.",
    "What is 17 plus 25?",
    "Describe a bicycle to someone who has never seen one.",
    "Write an SQL query that counts the orders of each customer.",
    "What is the difference between weather and climate?",
    "Tell me a joke about a programmer.",
    "Summarise the story of Cinderella in one sentence.",
)

PROMPTS = (OTHER[0], OTHER[1], COPYING[0], OTHER[2], *COPYING[1:], *OTHER[3:])
