"""Pages: who may use, share and overwrite them."""

from __future__ import annotations

import random

import pytest

from specroute.draft.llama import PAGE, LlamaCache
from specroute.draft.pages import OutOfPages, PagePool


def holding(pool: PagePool, ids: list[int]) -> LlamaCache:
    """A cache that holds ``ids``, whatever it could share of them included."""
    cache = LlamaCache(pool, [*ids, -1])
    cache.reserve(len(ids))
    cache.filled(ids[len(cache.ids) :])
    return cache


def test_equal_beginnings_share_their_full_pages() -> None:
    """The first pages are the same, the rest are each one's own."""
    pool = PagePool(100)
    head = list(range(2 * PAGE))
    a, b = holding(pool, [*head, 7, 8]), holding(pool, [*head, 9])
    assert a.pages[:2] == b.pages[:2]
    assert a.pages[2] != b.pages[2]
    assert pool.used == 4


def test_a_page_is_shared_only_with_all_that_comes_before_it() -> None:
    """The same tokens after another beginning are another page."""
    pool = PagePool(100)
    same = list(range(PAGE))
    a, b = holding(pool, [*same, *same]), holding(pool, [*([5] * PAGE), *same])
    assert not set(a.pages) & set(b.pages)


def test_the_last_token_is_never_taken_from_another() -> None:
    """A sequence that is there in full still has a token to forward for its logits."""
    pool = PagePool(100)
    ids = list(range(PAGE))
    holding(pool, ids)
    assert LlamaCache(pool, ids).ids == []
    assert LlamaCache(pool, [*ids, 1]).ids == ids


def test_what_was_left_is_still_shared() -> None:
    """A beginning outlives its first owner, until its pages are needed."""
    pool = PagePool(3)
    ids = list(range(2 * PAGE))
    a = holding(pool, ids)
    first = list(a.pages)
    a.release()
    assert pool.used == 0
    assert LlamaCache(pool, [*ids, 1]).pages == first
    pool = PagePool(3)
    holding(pool, ids).release()
    holding(pool, [9] * (3 * PAGE))
    assert LlamaCache(pool, [*ids, 1]).ids == []


def test_a_shared_page_is_copied_before_it_is_written_on() -> None:
    """Cropped into a shared page, a cache goes on on a copy."""
    pool = PagePool(100)
    ids = list(range(2 * PAGE))
    a, b = holding(pool, ids), holding(pool, [*ids, 1])
    shared = b.pages[1]
    b.crop(PAGE + 3)
    ((old, new),) = b.reserve(PAGE + 4)
    assert (old, b.pages[1]) == (shared, new)
    assert a.pages[1] == shared


def test_a_page_written_anew_is_no_longer_what_it_was() -> None:
    """Its one user may go back and write on it; nobody finds the old content there."""
    pool = PagePool(100)
    ids = list(range(2 * PAGE))
    a = holding(pool, ids)
    a.crop(PAGE + 3)
    assert a.reserve(2 * PAGE) == []
    a.filled([77] * (PAGE - 3))
    assert LlamaCache(pool, [*ids, 1]).ids == ids[:PAGE]
    assert len(LlamaCache(pool, [*a.ids, 1]).ids) == 2 * PAGE


def test_without_a_page_left_others_are_asked_then_it_is_an_error() -> None:
    """``reclaim`` is asked until it has nothing more to give."""
    pool = PagePool(2)
    idle = holding(pool, [1] * 3)
    asked: list[int] = []

    def reclaim() -> bool:
        asked.append(1)
        if idle.pages:
            idle.release()
            return True
        return False

    pool.reclaim = reclaim
    a = LlamaCache(pool)
    a.reserve(2 * PAGE)
    with pytest.raises(OutOfPages, match="all 2 pages"):
        a.reserve(2 * PAGE + 1)
    assert len(asked) == 2


def test_no_page_is_ever_lost_or_given_twice() -> None:
    """Whatever caches do, in any order: each page has as many users as caches hold it."""
    rng = random.Random(3)
    pool = PagePool(40)
    caches: list[LlamaCache] = []
    for _ in range(3000):
        move = rng.random()
        if move < 0.3 or not caches:
            ids = [rng.randrange(2) for _ in range(rng.randrange(1, 3 * PAGE))]
            caches.append(LlamaCache(pool, [0] * rng.randrange(3 * PAGE) + ids))
        cache = rng.choice(caches)
        if move < 0.6:
            more = [0] * rng.randrange(1, PAGE)
            try:
                cache.reserve(len(cache.ids) + len(more))
            except OutOfPages:
                caches.remove(cache)
                cache.release()
                continue
            cache.filled(more)
        elif move < 0.85:
            cache.crop(rng.randrange(len(cache.ids) + 1))
        else:
            caches.remove(cache)
            cache.release()
        users = [page for c in caches for page in c.pages]
        assert pool.used == len(set(users))
        assert all(pool._users[page] == users.count(page) for page in set(users))
        assert pool.made == pool.used + len(pool._blank) + len(pool._kept) <= 40
