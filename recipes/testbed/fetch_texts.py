"""Texts for the small test models: public domain, PSF, MIT or BSD only, from Debian packages.

    python recipes/testbed/fetch_texts.py --out work/testbed/texts

Downloads and unpacks packages (nothing is installed) and writes `texts.jsonl`, one document a line with its
domain, source and licence, in a fixed order, and the licence texts of the packages under `licenses/`.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

PACKAGES = (
    "r-cran-janeaustenr",
    "cfi-en",
    "jargon-text",
    "python3.11-doc",
    "libpython3.11-stdlib",
    "libpython3.11-minimal",
    "golang-1.19-src",
)
NOVELS = (  # in the order of the package's database
    "Emma",
    "Mansfield Park",
    "Northanger Abbey",
    "Persuasion",
    "Pride And Prejudice",
    "Sense And Sensibility",
)
GO_FOLDERS = (
    "archive bufio bytes compress container context crypto database debug encoding errors expvar flag fmt "
    "go hash html image index io log math mime net os path reflect regexp runtime sort strconv strings sync "
    "testing text time unicode"
)
OWN_NOTICE = re.compile(
    r"(?i)permission to use, copy|permission +is +hereby|redistribution and use|apache license"
    r"|provided ['\"]?as[ -]is"
)
CHARACTERS = range(3_000, 250_000)
JARGON_PART = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for packages and texts")
    out: Path = parser.parse_args().out
    roots = {package: unpack(package, out) for package in PACKAGES}
    rows = [
        *austen(roots),
        *cfi(roots),
        *jargon(roots),
        *python_docs(roots),
        *python_sources(roots),
        *go(roots),
    ]
    with (out / "texts.jsonl").open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    (out / "licenses").mkdir(exist_ok=True)
    for package in ("r-cran-janeaustenr", "cfi-en", "jargon-text", "python3.11-doc", "golang-1.19-src"):
        text = (roots[package] / "usr/share/doc" / package / "copyright").read_text(encoding="utf-8")
        (out / "licenses" / f"{package}.txt").write_text(text, encoding="utf-8")
    for domain in sorted({row["domain"] for row in rows}):
        chosen = [len(row["text"]) for row in rows if row["domain"] == domain]
        print(f"{domain:10} {len(chosen):5} documents {sum(chosen) / 1e6:7.2f} M characters")


def unpack(package: str, out: Path) -> Path:
    """The folder of a package's files, downloaded and unpacked once."""
    root = out / "packages" / package
    if not root.exists():
        downloads = out / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", package], cwd=downloads, check=True)
        (archive,) = downloads.glob(f"{package}_*.deb")
        root.parent.mkdir(exist_ok=True)
        subprocess.run(["dpkg", "-x", archive, root], check=True)
    return root


def document(text: str, domain: str, source: str, license_name: str) -> dict[str, str]:
    """One row, with line ends and trailing blanks made uniform."""
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return {
        "text": re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n",
        "domain": domain,
        "source": source,
        "license": license_name,
    }


def austen(roots: dict[str, Path]) -> Iterator[dict[str, str]]:
    """Six novels from an R lazy-load database: per object 4 bytes of length, then a zlib stream."""
    folder = roots["r-cran-janeaustenr"] / "usr/lib/R/site-library/janeaustenr/data"
    data = (folder / "Rdata.rdb").read_bytes()
    at = 0
    for title in NOVELS:
        (size,) = struct.unpack_from(">I", data, at)
        stream = zlib.decompressobj()
        body = stream.decompress(data[at + 4 :])
        at = len(data) - len(stream.unused_data)
        if len(body) != size:
            raise ValueError(f"{title}: {len(body)} bytes unpacked, {size} announced")
        text = "\n".join(r_strings(body))
        yield document(text, "prose", f"janeaustenr:{title}", "public domain")


def r_strings(body: bytes) -> Iterator[str]:
    """The elements of a serialised R character vector (XDR, version 3)."""
    (encoding_length,) = struct.unpack_from(">I", body, 14)
    at = 18 + encoding_length
    kind, count = struct.unpack_from(">II", body, at)
    if kind & 0xFF != 16:
        raise ValueError(f"R type {kind & 0xFF} is not a character vector")
    at += 8
    for _ in range(count):
        _, length = struct.unpack_from(">Ii", body, at)
        yield body[at + 8 : at + 8 + max(length, 0)].decode("utf-8", errors="replace")
        at += 8 + max(length, 0)


def cfi(roots: dict[str, Path]) -> Iterator[dict[str, str]]:
    folder = roots["cfi-en"] / "usr/share/doc/cfi-en/html"
    for number in range(1, 18):
        raw = (folder / f"ch{number}web.htm").read_bytes().decode("latin-1")
        raw = re.sub(r"(?is)<(script|style).*?</\1>", " ", raw)
        raw = re.sub(r"\s+", " ", raw)
        raw = re.sub(r"(?i)<(p|br|h[1-6]|div|li|tr)\b[^>]*>", "\n\n", raw)
        text = "\n".join(line.strip() for line in html.unescape(re.sub(r"<[^>]*>", "", raw)).split("\n"))
        yield document(text, "prose", f"cfi-en:ch{number}", "public domain")


def jargon(roots: dict[str, Path]) -> Iterator[dict[str, str]]:
    """The Jargon File in parts, cut at blank lines."""
    path = roots["jargon-text"] / "usr/share/doc/jargon-text/jargon.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    start = part = 0
    while start < len(text):
        stop = text.find("\n\n", start + JARGON_PART)
        stop = len(text) if stop < 0 else stop
        yield document(text[start:stop], "glossary", f"jargon-text:part{part:02}", "public domain")
        start, part = stop, part + 1


def python_docs(roots: dict[str, Path]) -> Iterator[dict[str, str]]:
    folder = roots["python3.11-doc"] / "usr/share/doc/python3.11/html/_sources"
    for path in sorted(folder.rglob("*.rst.txt")):
        yield from source_file(path, folder, "techdoc", "python3.11-doc", "PSF-2.0")


def python_sources(roots: dict[str, Path]) -> Iterator[dict[str, str]]:
    for package in ("libpython3.11-stdlib", "libpython3.11-minimal"):
        folder = roots[package] / "usr/lib/python3.11"
        for path in sorted(folder.rglob("*.py")):
            if path.parent.name not in {"encodings", "pydoc_data"} and "_sysconfigdata" not in path.name:
                yield from source_file(path, folder, "code", "python3.11-stdlib", "PSF-2.0")


def go(roots: dict[str, Path]) -> Iterator[dict[str, str]]:
    folder = roots["golang-1.19-src"] / "usr/share/go-1.19/src"
    for top in GO_FOLDERS.split(" "):
        for path in sorted((folder / top).rglob("*.go")):
            parts = path.relative_to(folder).parts
            if path.is_file() and "testdata" not in parts and not path.name.endswith("_test.go"):
                yield from source_file(path, folder, "code", "golang-1.19-src", "BSD-3-Clause")


def source_file(
    path: Path, folder: Path, domain: str, package: str, license_name: str
) -> Iterator[dict[str, str]]:
    """The file as a document, unless it is tiny, huge, generated or mostly a table.

    Files that carry a licence notice of their own (older permissive ones, in Python's library) say so.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    letters = sum(character.isalpha() for character in text)
    if (
        len(text) not in CHARACTERS
        or letters < 0.55 * len(text.replace(" ", ""))
        or "DO NOT EDIT" in text[:400]
    ):
        return
    if OWN_NOTICE.search(text):
        license_name += " with a notice of its own"
    yield document(text, domain, f"{package}:{path.relative_to(folder)}", license_name)


if __name__ == "__main__":
    main()
