"""The acceptance rules on tables: what is visible, what is accepted, what is refused."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specroute.acceptance import Outcome, Sampling, draw, judge, match, verify, visible

GREEDY = Sampling(0.0)


def logs(*probabilities: float) -> list[tuple[int, float]]:
    """Top logprobs for ids 0, 1, 2 … with these probabilities."""
    return [(i, math.log(p) if p else -math.inf) for i, p in enumerate(probabilities)]


def rounded(p: dict[int, float] | None) -> dict[int, float] | None:
    return None if p is None else {k: round(v, 6) for k, v in p.items()}


@pytest.mark.parametrize(
    ("top", "sampling", "expected"),
    [
        pytest.param(logs(0.2, 0.5, 0.1), GREEDY, {1: 1.0}, id="greedy takes the argmax"),
        pytest.param(logs(0.5), GREEDY, {0: 1.0}, id="greedy needs one logprob"),
        pytest.param([(9, -0.7), (4, -0.7)], GREEDY, {4: 1.0}, id="greedy tie: lowest id"),
        pytest.param(logs(0.4, 0.6), Sampling(1e-6), {1: 1.0}, id="tiny T is greedy"),
        pytest.param(logs(0.25, 0.75), Sampling(1.0), {1: 0.75, 0: 0.25}, id="all visible"),
        pytest.param(logs(0.25, 0.75), Sampling(0.5), {1: 0.9, 0: 0.1}, id="T squares"),
        pytest.param(logs(0.25, 0.75), Sampling(2.0), {1: 0.633975, 0: 0.366025}, id="T=2 roots"),
        pytest.param(logs(0.3, 0.6), Sampling(1.0), None, id="a tail at T=1"),
        pytest.param(logs(0.3, 0.6), Sampling(0.7), None, id="a tail at T<1"),
        pytest.param(logs(0.3, 0.6), Sampling(1.3), None, id="a tail at T>1"),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(1, top_k=2), {0: 0.625, 1: 0.375}, id="top_k<N"),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(2, top_k=1), {0: 1.0}, id="top_k at T>1"),
        pytest.param(logs(0.5, 0.2, 0.1), Sampling(1, top_k=3), None, id="top_k=N, tie may hide"),
        pytest.param(
            logs(0.5, 0.3, 0.15), Sampling(1, top_k=3), {0: 0.526316, 1: 0.315789, 2: 0.157895},
            id="top_k=N, the tail is too small to tie",
        ),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(1, top_k=4), None, id="top_k>N"),
        pytest.param(logs(0.4, 0.2, 0.2, 0.1), Sampling(1, top_k=2), None, id="tie at top_k"),
        pytest.param(logs(0.4, 0.2, 0.2, 0.1), Sampling(1, top_k=3),
                     {0: 0.5, 1: 0.25, 2: 0.25}, id="tie inside top_k"),
        pytest.param(logs(0.6, 0.2, 0.2), Sampling(1, 0.5, 2), {0: 1.0}, id="tie past the nucleus"),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(1, 0.7), {0: 0.625, 1: 0.375}, id="nucleus"),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(1, 0.8), None, id="cumulative = top_p"),
        pytest.param(logs(0.5, 0.3, 0.2), Sampling(1, 0.8), None, id="cumulative = top_p, no tail"),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(1, 0.95), None, id="nucleus past N"),
        pytest.param(logs(0.4, 0.2, 0.2, 0.2), Sampling(1, 0.5), None, id="tie at the nucleus"),
        pytest.param(logs(0.5, 0.3, 0.15), Sampling(1, 0.9),
                     {0: 0.526316, 1: 0.315789, 2: 0.157895}, id="nucleus ends at N"),
        pytest.param(logs(0.5, 0.3), Sampling(1, 0.0), {0: 1.0}, id="top_p 0 keeps one"),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(0.5, 0.69), {0: 1.0}, id="T<1, certain nucleus"),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(0.5, 0.7), None, id="T<1, Z's bounds differ"),
        pytest.param(logs(0.5, 0.3, 0.1), Sampling(1.3, 0.5), None, id="T>1, the tail may be huge"),
        pytest.param(logs(0.6, 0.2, 0.1), Sampling(1, 0.7, 2), {0: 1.0}, id="top_p after top_k"),
        pytest.param(logs(0.6, 0.2, 0.1), Sampling(1, min_p=0.3), {0: 0.75, 1: 0.25}, id="min_p"),
        pytest.param(logs(0.6, 0.2, 0.1), Sampling(1, min_p=0.1), None, id="min_p below N"),
        pytest.param(logs(0.5, 0.25, 0.1), Sampling(1, min_p=0.5), None, id="w = min_p"),
        pytest.param(logs(0.6, 0.2, 0.15), Sampling(1, 0.74, min_p=0.3), None,
                     id="min_p before and after top_p differ"),
        pytest.param([(0, 0.0), (1, -math.inf), (2, -9999.0)], Sampling(1), {0: 1.0}, id="-inf"),
        pytest.param(logs(0.75, 0.25, 0), Sampling(1), {0: 0.75, 1: 0.25}, id="0 ends the support"),
        pytest.param([(0, 0.0), (1, -30.0)], Sampling(1), {0: 1.0, 1: 0.0}, id="rounded to 0"),
    ],
)  # fmt: skip
def test_visible(top, sampling, expected):
    """p is returned iff everything that matters is visible."""
    assert rounded(visible(top, sampling)) == expected


@pytest.mark.parametrize(
    "top",
    [
        pytest.param([], id="empty"),
        pytest.param([(0, 0.5)], id="positive"),
        pytest.param([(0, math.nan)], id="nan"),
        pytest.param([(0, math.inf)], id="inf"),
        pytest.param(logs(0.7, 0.4), id="sum above 1"),
        pytest.param([(0, -1.0), (0, -2.0)], id="an id twice"),
        pytest.param([(0, -math.inf)], id="all impossible"),
        pytest.param([(0, -720.0), (1, -721.0)], id="a best one that no vocabulary allows"),
        pytest.param(logs(0.5, 0.2, 0), id="0 is listed while mass is missing"),
    ],
)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0), Sampling(0.7, 0.9)])
def test_what_no_server_can_mean_is_refused(top, sampling):
    """Impossible logprobs raise, whatever the sampling."""
    with pytest.raises(ValueError):
        visible(top, sampling)


@pytest.mark.parametrize(
    "bad", [{"temperature": -1}, {"temperature": math.nan}, {"top_p": 1.1}, {"min_p": -0.1}]
)
def test_sampling_is_validated(bad):
    """Settings outside their range raise."""
    with pytest.raises(ValueError):
        Sampling(**bad)


@given(
    st.lists(st.floats(0.01, 1.0), min_size=8, max_size=40),
    st.floats(0.3, 2.0),
    st.floats(0.1, 1.0),
    st.integers(0, 8),
    st.sampled_from([0.0, 0.02, 0.2]),
    st.integers(1, 10),
    st.data(),
)
def test_what_is_visible_is_what_a_server_computes(weights, t, top_p, top_k, min_p, n, data):
    """Where p is returned it equals the transform of the whole distribution, and the appended
    drafted token changes nothing."""
    total = sum(weights)
    full = sorted(((i, w / total) for i, w in enumerate(weights)), key=lambda e: (-e[1], e[0]))
    top = [(i, math.log(p)) for i, p in full]
    sampling = Sampling(t, top_p, top_k, min_p)
    seen = visible(top[:n], sampling)
    drafted = data.draw(st.integers(0, len(top) - 1))
    appended = top[:n] + ([top[drafted]] if drafted >= n else [])
    assert visible(appended, sampling, n) == seen
    if seen is None:
        return
    assert seen == pytest.approx(reference(full, sampling), abs=1e-5)
    assert sum(seen.values()) == pytest.approx(1)


def reference(full, sampling):
    """The server's transform of a full distribution: temperature, top_k, top_p, min_p."""
    heated = [(i, p ** (1 / sampling.temperature)) for i, p in full]
    if sampling.top_k:
        heated = heated[: sampling.top_k]
    total, before, kept = sum(w for _, w in heated), 0.0, []
    for i, w in heated:
        if kept and before >= sampling.top_p * total:
            break
        kept.append((i, w))
        before += w
    kept = [(i, w) for i, w in kept if w >= sampling.min_p * kept[0][1]]
    total = sum(w for _, w in kept)
    return {i: w / total for i, w in kept}


P = {0: 0.5, 1: 0.3, 2: 0.2}


@pytest.mark.parametrize(
    ("x", "q", "coin", "expected"),
    [
        pytest.param(0, None, 0.49, 0, id="point mass: accept below p(x)"),
        pytest.param(0, None, 0.5, 1, id="point mass: residual is p without x"),
        pytest.param(0, None, 0.81, 2, id="the same coin draws the residual"),
        pytest.param(7, None, 0.0, 0, id="a token the target can't say"),
        pytest.param(1, {0: 0.4, 1: 0.2, 2: 0.4}, 0.999, 1, id="p > q always accepts"),
        pytest.param(2, {0: 0.4, 1: 0.2, 2: 0.4}, 0.49, 2, id="accept p/q = .5"),
        pytest.param(2, {0: 0.4, 1: 0.2, 2: 0.4}, 0.51, 0, id="residual .1/.1, first half"),
        pytest.param(2, {0: 0.4, 1: 0.2, 2: 0.4}, 0.99, 1, id="residual .1/.1, second half"),
        pytest.param(0, P, 0.9999, 0, id="q = p accepts"),
    ],
)
def test_judge(x, q, coin, expected):
    """min(1, p/q), then the residual; the result is x iff x is accepted."""
    assert judge(x, P, q, coin) == expected


def test_a_token_the_draft_could_not_have_drawn_raises():
    """q(x) = 0 is a broken drafter."""
    with pytest.raises(ValueError):
        judge(0, P, {0: 0.0, 1: 1.0}, 0.5)


@pytest.mark.parametrize(
    ("drafted", "positions", "expected"),
    [
        ([4, 5], [{4: 1.0}, {5: 1.0}], Outcome(2, None, "all")),
        ([4, 5], [{4: 1.0}, {6: 1.0}], Outcome(1, 6, "rejected")),
        ([4, 5], [{6: 1.0}, {5: 1.0}], Outcome(0, 6, "rejected")),
        ([4, 5], [{4: 1.0}, None], Outcome(1, None, "unseen")),
        ([4, 5], [None, {5: 1.0}], Outcome(0, None, "unseen")),
        ([4, 5], [{4: 1.0}], Outcome(1, None, "unseen")),
        ([4, 5], [{6: 1.0}, None], Outcome(0, 6, "rejected")),
        ([], [], Outcome(0, None, "all")),
    ],
)
def test_greedy_verification(drafted, positions, expected):
    """Point masses: accepted while the argmax agrees; stops before what can't be seen."""
    assert verify(drafted, positions, None, random.Random(1)) == expected


def test_a_sampled_draft_is_verified_greedily_too():
    """At T = 0 a drawn draft is accepted iff it is the argmax, whatever q is."""
    q = [{4: 0.01, 5: 0.99}] * 2
    assert verify([4, 5], [{4: 1.0}, {4: 1.0}], q, random.Random(1)) == Outcome(1, 4, "rejected")


@pytest.mark.parametrize(
    ("drafted", "sampled", "expected"),
    [
        ([4, 5], [4, 5, 6], Outcome(2, 6, "all")),
        ([4, 5], [4, 5], Outcome(2, None, "all")),
        ([4, 5], [4, 7, 6], Outcome(1, 7, "rejected")),
        ([4, 5], [4], Outcome(1, None, "unseen")),
        ([], [3], Outcome(0, 3, "all")),
    ],
)
def test_match(drafted, sampled, expected):
    """The server's own draws are committed up to and including the first mismatch."""
    assert match(drafted, sampled) == expected


def test_draw_covers_its_distribution():
    """The inverse CDF: edges belong to the next token, rounding at the end to the last."""
    p = {3: 0.5, 1: 0.0, 2: 0.5}
    assert [draw(p, c) for c in (0.0, 0.4999, 0.5, 0.9999, 1.0)] == [3, 3, 2, 2, 2]
    with pytest.raises(ValueError):
        draw({}, 0.5)
