"""The screen: whatever is drafted and committed, what was committed stays and comes out whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.provisional import Provisional, Rollback, Screen

TEXT = st.text(alphabet="ab 好", max_size=6)
STEP = st.one_of(
    st.tuples(st.just("draft"), st.integers(0, 12), TEXT), st.tuples(st.just("commit"), TEXT)
)


class Reader:
    """What somebody sees who follows the events."""

    def __init__(self) -> None:
        self.committed, self.provisional = "", ""

    def follow(self, events: list[Provisional | Rollback]) -> None:
        for event in events:
            if isinstance(event, Provisional):
                assert event.text
                self.provisional += event.text
            else:
                assert 0 < event.n_chars <= len(self.provisional)
                self.provisional = self.provisional[: -event.n_chars]

    def commit(self, text: str) -> None:
        assert self.provisional.startswith(text) or text.startswith(self.provisional)
        self.committed += text
        self.provisional = self.provisional[len(text) :]


@given(st.lists(STEP, max_size=12))
def test_a_reader_sees_what_the_screen_says_and_no_committed_character_goes(steps: list) -> None:
    """Drafts for any place, also one that is not committed yet or was refuted."""
    screen, reader = Screen(), Reader()
    whole = ""
    for step in steps:
        if step[0] == "draft":
            reader.follow(screen.drafted(step[1], step[2]))
        else:
            before, after = screen.commit(step[1])
            reader.follow(before)
            reader.commit(step[1])
            reader.follow(after)
            whole += step[1]
        assert (reader.committed, reader.provisional) == (screen.committed, screen.provisional)
    before, after = screen.commit("", last=True)
    reader.follow(before)
    assert after == []
    assert (reader.committed, reader.provisional) == (whole, "")


@pytest.mark.parametrize(
    ("draft", "commit", "before", "left"),
    [
        ("one two", "one", [], " two"),
        ("one", "one two", [], ""),
        ("one two", "one three", [Rollback(2)], ""),
        ("one", "two", [Rollback(3)], ""),
        ("", "two", [], ""),
    ],
)
def test_a_commit_takes_back_what_it_contradicts(
    draft: str, commit: str, before: list, left: str
) -> None:
    """And leaves what it does not speak of."""
    screen = Screen()
    screen.drafted(0, draft)
    assert screen.commit(commit) == (before, [])
    assert screen.provisional == left


def test_a_draft_ahead_of_the_commits_waits_for_them() -> None:
    """Drafts are made where the answer is; its chunks may still be on their way."""
    screen = Screen()
    assert screen.drafted(3, " two") == []
    assert screen.commit("one") == ([], [Provisional(" two")])


def test_a_refuted_draft_is_not_shown() -> None:
    """The answer went on otherwise while it was made."""
    screen = Screen()
    screen.commit("one three")
    assert screen.drafted(3, " two") == []
    assert screen.drafted(3, " three four") == [Provisional(" four")]


def test_another_draft_changes_only_where_it_differs() -> None:
    """What both say stays on the screen."""
    screen = Screen()
    assert screen.drafted(0, "one two") == [Provisional("one two")]
    assert screen.drafted(0, "one three") == [Rollback(2), Provisional("hree")]
    assert (screen.rollbacks, screen.taken_back) == (1, 2)
