"""Measures how often the draft agrees with the target on held-out prompts.

    python -m specroute.reference.acceptance_check [--prompts 60] [--target DIR] [--draft DIR]

Knows greedy agreement: rounds of K drafted tokens, replayed along the target's own greedy
answers, without any server. Doesn't know time, cost or sampling.

α̂ = accepted / (accepted + rejected) over judged tokens: those a round drafted after its first
rejection, or past the answer's end, were never judged.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.corpus import TRAFFIC, held_out


@dataclass(frozen=True)
class Replay:
    """What rounds of K drafted tokens came to, over one or more answers."""

    accepted: int
    rejected: int
    survived: tuple[int, ...]  # [k-1]: rounds that accepted at least k tokens
    reached: tuple[int, ...]  # [k-1]: rounds that the answer's end didn't cut before token k

    @property
    def alpha(self) -> float:
        """α̂, the share of judged tokens that were accepted; NaN if none was judged."""
        judged = self.accepted + self.rejected
        return self.accepted / judged if judged else float("nan")

    @property
    def survival(self) -> tuple[float, ...]:
        """S(k) for k = 1..K: the share of rounds with at least k accepted, of those that could."""
        return tuple(s / r if r else 0.0 for s, r in zip(self.survived, self.reached, strict=True))


def replay(answers: Sequence[Sequence[bool]], k: int) -> Replay:
    """Rounds of `k` along `answers`, which say at each token whether the draft would propose it.

    A round commits what it accepted and one token of the target's own, the correction or bonus.
    """
    accepted = rejected = 0
    survived, reached = [0] * k, [0] * k
    for matches in answers:
        at = 0
        while at < len(matches):
            window = matches[at : at + k]
            good = next((n for n, match in enumerate(window) if not match), len(window))
            accepted += good
            rejected += good < len(window)
            for n in range(k):
                reached[n] += n < len(window)
                survived[n] += n < good
            at += good + 1
    return Replay(accepted, rejected, tuple(survived), tuple(reached))


def loops(ids: Sequence[int], size: int = 8, times: int = 3) -> bool:
    """Whether an answer repeats itself: some run of `size` tokens occurs at least `times` times."""
    runs = Counter(tuple(ids[at : at + size]) for at in range(len(ids) - size + 1))
    return any(count >= times for count in runs.values())


def measure(
    traffic: str, target_folder: Path, draft_folder: Path, prompts: int, max_tokens: int
) -> dict[str, Any]:
    """The figures of one class of traffic, models computing in fp32, by name."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target_folder)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (target_folder, draft_folder)
    )
    matches, answers, lengths = [], [], []
    for messages in held_out(traffic, prompts):
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        start = prompt["input_ids"].shape[1]
        with torch.inference_mode():
            ids = target.generate(**prompt, do_sample=False, max_new_tokens=max_tokens)
            guesses = draft(input_ids=ids[:, :-1]).logits[0, start - 1 :].argmax(-1)
        answer = ids[0, start:]
        matches.append((guesses == answer).tolist())
        answers.append(answer.tolist())
        lengths.append(start)
    looping = [loops(answer) for answer in answers]
    calm = [match for match, loop in zip(matches, looping, strict=True) if not loop]
    return {
        "traffic": traffic,
        "prompts": len(answers),
        "prompt_tokens": sum(lengths) / len(lengths),
        "answer_tokens": sum(map(len, answers)) / len(answers),
        "ended": sum(a[-1] == tokenizer.eos_token_id for a in answers) / len(answers),
        "looping": sum(looping) / len(looping),
        "rounds": [
            {"k": k, "alpha": whole.alpha, "alpha_without_loops": replay(calm, k).alpha}
            | {"survival": whole.survival, "counts": asdict(whole)}
            for k in (4, 8)
            for whole in [replay(matches, k)]
        ],
    }


def main() -> None:
    """The command line: measure each class and print it, or one JSON object with `--json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, help="default: the bundled target")
    parser.add_argument("--draft", type=Path, help="default: the bundled draft")
    parser.add_argument("--prompts", type=int, default=60, help="per class")
    parser.add_argument("--max-tokens", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # so small models only lose time by sharing their work
    target = options.target or target_dir()
    draft = options.draft or draft_dir()
    found = [measure(name, target, draft, options.prompts, options.max_tokens) for name in TRAFFIC]
    if options.json:
        print(json.dumps({"classes": found}))
        return
    for figures in found:
        print(
            f"{figures['traffic']}: {figures['prompts']} prompts of "
            f"{figures['prompt_tokens']:.0f} tokens, answers of {figures['answer_tokens']:.0f}; "
            f"{figures['ended']:.0%} end by themselves, {figures['looping']:.0%} loop"
        )
        for rounds in figures["rounds"]:
            survival = " ".join(f"{value:.2f}" for value in rounds["survival"])
            print(
                f"  K={rounds['k']}  α̂ {rounds['alpha']:.3f}  without looping answers "
                f"{rounds['alpha_without_loops']:.3f}  S(k) {survival}"
            )


if __name__ == "__main__":
    main()
