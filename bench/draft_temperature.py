"""How acceptance depends on the temperature that drafts are drawn at, on the bundled models.

    python bench/draft_temperature.py [--prompts 24] [--tokens 96] [--json]

Rejection sampling accepts a token that was drawn from q with the chance Σ min(p, q), whatever q is
(Leviathan et al., arXiv 2211.17192). Here that is computed, not sampled: along answers that the
target itself draws at the request's temperature T, at each position, for drafts drawn at shares of
T. S(k) multiplies these along windows. Nothing is served, timed or measured by the policy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specroute.policy.temperature import SHARES
from specroute.reference.bundled import draft_dir, target_dir
from specroute.reference.corpus import TRAFFIC, held_out

ALL = (1.6, 1.3, 1.15, 1.0, 0.85, 0.7, 0.55, 0.4, 0.2)
TEMPERATURES = (1.0, 0.7)
K = 5


def overlaps(
    target: Any, draft: Any, tokenizer: Any, prompts: Sequence[Any], temperature: float, tokens: int
) -> dict[float, list[torch.Tensor]]:
    """Of each share: for each answer Σ min(p, q) at each of its positions."""
    found: dict[float, list[torch.Tensor]] = {share: [] for share in ALL}
    for messages in prompts:
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        start = prompt["input_ids"].shape[1]
        with torch.inference_mode():
            ids = target.generate(
                **prompt, do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
                max_new_tokens=tokens,
            )  # fmt: skip
            said = target(input_ids=ids[:, :-1]).logits[0, start - 1 :].double()
            guess = draft(input_ids=ids[:, :-1]).logits[0, start - 1 :].double()
        p = (said / temperature).softmax(-1)
        for share in ALL:
            q = (guess / (temperature * share)).softmax(-1)
            found[share].append(torch.minimum(p, q).sum(-1))
    return found


def rows(found: dict[float, list[torch.Tensor]]) -> list[dict[str, float]]:
    """Of each share α, the expected tokens of a round of K, and 90 % over answers of α against the
    usual temperature's."""
    usual = torch.stack([each.mean() for each in found[1.0]])
    made = []
    for share, each in found.items():
        alpha = float(torch.cat(each).mean())
        windows = torch.cat([a.unfold(0, K, 1) for a in each if len(a) >= K])
        tokens = 1 + float(windows.cumprod(-1).sum(-1).mean())
        gain = torch.stack([a.mean() for a in each]) - usual
        half = 1.645 * float(gain.std()) / len(gain) ** 0.5
        made.append(
            {
                "share": share, "alpha": alpha, "tokens": tokens,
                "gain": float(gain.mean()), "half": half,
            }
        )  # fmt: skip
    return made


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(target_dir())
    target, draft = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (target_dir(), draft_dir())
    )
    told = []
    for traffic in TRAFFIC:
        prompts = list(held_out(traffic, options.prompts))
        for temperature in TEMPERATURES:
            found = overlaps(target, draft, tokenizer, prompts, temperature, options.tokens)
            told.append({"traffic": traffic, "temperature": temperature, "rows": rows(found)})
    if options.json:
        print(json.dumps(told, indent=2))
        return
    for each in told:
        print(f"{each['traffic']}, T = {each['temperature']:g}, {options.prompts} answers")
        best = max(each["rows"], key=lambda row: row["tokens"])
        for row in each["rows"]:
            marks = ("*" if row is best else " ") + ("t" if row["share"] in SHARES else " ")
            print(
                f"  {marks} draft at {row['share']:4g} T: α {row['alpha']:.3f} "
                f"({row['gain']:+.3f} ± {row['half']:.3f}), {row['tokens']:.2f} tokens a round"
            )


if __name__ == "__main__":
    main()
