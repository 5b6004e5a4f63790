"""The draft that a leading stream is held against: how far it has been followed, where to cut it.

Pure; one draft, by ids or by text, that may grow while it is followed. Knows no lanes and no
streams. Positions inside it are in ids or characters from its own start.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_left

from specroute.alignment import cut_points, matched_pieces
from specroute.context import Committed
from specroute.draft.base import Proposal
from specroute.draft.ngram import split_pieces

_SAID = re.compile(r"\s*\S+(?=\s)")
_DRAFTED = re.compile(r"\s*\S+")
_WINDOW = 256
"""Characters before a growing end that are searched for cuts again: a cut shows two characters."""


class Drafted:
    """A draft that begins at ``start`` of the answer (ids: tokens; text: characters), after
    ``before``.

    ``loose``, by text alone: words are alike whatever their case and the punctuation at their end.
    """

    def __init__(self, start: int, before: Committed, *, by_ids: bool, loose: bool = False) -> None:
        self.start = start
        self.before = before
        self.loose = loose and not by_ids
        self.ids: tuple[int, ...] | None = () if by_ids else None
        self.text = ""
        self.matched = 0
        """So much of it the leading stream has said."""
        self.seconds = 0.0
        """What the drafting took."""
        self.ended = False
        """Nothing more can be drafted after it."""
        self.launched = self.switched = False
        """Whether lanes were started from it, and whether one of them took over."""
        self._cuts: list[int] = []
        self._searched = 0
        self._pending = ""
        """Loose: the word that the leading stream has begun."""

    def __len__(self) -> int:
        return len(self.text) if self.ids is None else len(self.ids)

    @property
    def end(self) -> int:
        """Of the answer: where it ends."""
        return self.start + len(self)

    @property
    def place(self) -> int:
        """Of the answer: where the leading stream is, as far as it followed."""
        return self.start + self.matched

    @property
    def used_up(self) -> bool:
        return self.ended and self.matched >= len(self)

    def grow(self, proposal: Proposal) -> bool:
        """Take more of it; whether there was any that can be used."""
        self.seconds += proposal.seconds
        before = len(self)
        if self.ids is not None and proposal.ids is not None:
            # A lane can't begin behind an end token.
            self.ids += proposal.ids[:-1] if proposal.ended else proposal.ids
            self.text += proposal.text
        elif self.ids is None:
            self.text += proposal.text
        grown = len(self) > before
        self.ended = self.ended or proposal.ended or not grown
        return grown

    def begun(self, cut: int | None = None) -> Committed:
        """What was committed before it, and it, to the end or to ``cut``."""
        if self.ids is None:
            return Committed(self.before.text + self.text[:cut])
        text = self.before.text + self.text if cut is None else ""
        return Committed(text, (*(self.before.ids or ()), *self.ids[:cut]))

    # --- following --------------------------------------------------------------------------

    def follow_id(self, token: int) -> bool:
        """The leading stream goes on with ``token``: whether the draft does, too. What is said
        behind a growing draft's end can't be told yet: :meth:`catch_up`."""
        ids = self.ids or ()
        if self.matched >= len(ids):
            return not self.ended
        if ids[self.matched] != token:
            return False
        self.matched += 1
        return True

    def follow(self, part: str) -> bool:
        """As :meth:`follow_id`, by text."""
        if self.loose:
            self._pending += part
            return self._follow_words()
        left = self.text[self.matched : self.matched + len(part)]
        if not part.startswith(left):
            return False
        self.matched += len(left)
        return len(left) == len(part) or not self.ended

    def catch_up(self, since: tuple[int, ...] | str) -> bool:
        """After it has grown: ``since`` is all that the leading stream has said from its start."""
        if isinstance(since, str):
            if self.loose:
                self._pending, self.matched = "", 0
                return self.follow(since)
            new = since[self.matched :]
            return self.follow(new) if new else True
        return all(self.follow_id(token) for token in since[self.matched :])

    def settle(self, ahead: str) -> None:
        """Loose: the leading stream goes on with ``ahead``; a space ends the word before it."""
        if self.loose and self._pending and ahead[:1].isspace():
            word = _DRAFTED.match(self.text, self.matched)
            if word is not None and _alike(self._pending, word.group()):
                self._pending, self.matched = "", word.end()

    def _follow_words(self) -> bool:
        while (said := _SAID.match(self._pending)) is not None:
            drafted = _DRAFTED.match(self.text, self.matched)
            if drafted is None or (drafted.end() == len(self.text) and not self.ended):
                return not self.ended
            if not _alike(said.group(), drafted.group()):
                return False
            self._pending, self.matched = self._pending[said.end() :], drafted.end()
        begun = self._pending.strip()
        drafted = _DRAFTED.match(self.text, self.matched)
        if not begun or drafted is None:
            return True
        whole = drafted.group().strip().casefold()
        return whole.startswith(begun.casefold()) or _alike(begun, whole)

    # --- cutting ----------------------------------------------------------------------------

    def cut_from(self, least: float) -> int | None:
        """The first place at or after ``least`` where a lane may begin: by ids anywhere, by text
        where a token boundary is sure (before a space between non-spaces)."""
        if self.ids is not None:
            cut = max(int(-(-least // 1)), 1)
            return cut if cut <= len(self.ids) else None
        self._find_cuts()
        i = bisect_left(self._cuts, least)
        return self._cuts[i] if i < len(self._cuts) else None

    def _find_cuts(self) -> None:
        if self._searched == len(self.text):
            return
        begin = max(self._searched - _WINDOW, 0)
        known = self._cuts[-1] if self._cuts else 0
        found = (begin + cut for cut in cut_points(self.text[begin:]))
        self._cuts += [cut for cut in found if cut > known]
        self._searched = len(self.text)

    def tokens(self, size: int) -> int:
        """About how many tokens its first ``size`` ids or characters are."""
        if self.ids is not None:
            return size
        return matched_pieces(split_pieces(self.text), self.text[:size])[0]


def _alike(a: str, b: str) -> bool:
    """Whether two words differ at most in case and in punctuation at their end."""
    return _bare(a) == _bare(b)


def _bare(word: str) -> str:
    word = word.strip().casefold()
    return word.rstrip(string.punctuation) or word
