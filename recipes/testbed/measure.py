"""Needle retrieval and text loss of a saved model, by plain `generate` and plain forward calls.

    python recipes/testbed/measure.py --model ridgefit/bundled/llama \
        --texts ridgefit/bundled/development.jsonl

Prints one JSON object a line: strict retrieval (%) and share of right digits (%) by length, haystack and
number of needles, then the mean loss per token of the texts in windows of 1,024.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from ridgefit.evaluate import needle_text

ANSWER_TOKENS = 12
WINDOW = 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="default: the model's folder")
    parser.add_argument(
        "--texts", type=Path, required=True, help="JSONL of texts the model was not trained on"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--needles", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--samples", type=int, default=50, help="prompts per row of the table")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--seed", type=int, default=2024)
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if '"kimi_linear_rotated"' in (arguments.model / "config.json").read_text(encoding="utf-8"):
        from ridgefit.models.kimi_linear_rotated import register

        register()
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer or arguments.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16).to(device).eval()
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    haystacks = (needle_text.NoiseHaystack(), needle_text.TextHaystack(texts))
    for length in arguments.lengths:
        for needles in arguments.needles:
            for haystack in haystacks:
                cases = [
                    needle_text.build_case(
                        random.Random(arguments.seed + sample),
                        needles=needles,
                        haystack=haystack,
                        fits=lambda text: len(tokenizer(text)["input_ids"]),
                        budget=length,
                        filled_until=length - length // 8,
                    )
                    for sample in range(arguments.samples)
                ]
                answers = answer(model, tokenizer, cases, arguments.batch)
                pairs = [(given, case.value) for given, case in zip(answers, cases, strict=True)]
                row = {"length": length, "needles": needles, "haystack": haystack.name, "samples": len(cases)}
                strict = sum(needle_text.strict(*pair) for pair in pairs) / len(pairs)
                digits = sum(needle_text.digit_share(*pair) for pair in pairs) / len(pairs)
                print(
                    json.dumps(row | {"strict": 100 * strict, "digits": round(100 * digits, 1)}), flush=True
                )
    print(json.dumps({"text_loss": round(text_loss(model, tokenizer, texts), 4)}), flush=True)


@torch.no_grad()
def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    cases: list[needle_text.NeedleCase],
    batch: int,
) -> list[str]:
    """Greedy answers."""
    answers: list[str] = []
    for start in range(0, len(cases), batch):
        prompts = [case.prompt for case in cases[start : start + batch]]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False).to(
            model.device
        )
        output = model.generate(**inputs, max_new_tokens=ANSWER_TOKENS, do_sample=False)
        answers += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers


@torch.no_grad()
def text_loss(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> float:
    """Mean negative log-likelihood per token (nats) over the first four whole windows of each text."""
    losses = []
    for text in texts:
        tokens = torch.tensor(tokenizer(text, truncation=True)["input_ids"])
        count = min(4, len(tokens) // WINDOW)
        if count:
            batch = tokens[: count * WINDOW].view(count, WINDOW).to(model.device)
            logits = model(input_ids=batch[:, :-1]).logits.float()
            losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
    return torch.stack(losses).mean().item()


if __name__ == "__main__":
    main()
