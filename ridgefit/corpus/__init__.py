"""Text to a frozen, hashed token manifest: documents, folds, windows."""

from __future__ import annotations

from ridgefit.corpus.building import build_store
from ridgefit.corpus.documents import Document
from ridgefit.corpus.encoding import template_doubles_bos
from ridgefit.corpus.manifest import DocumentRecord, Manifest, Window
from ridgefit.corpus.reading import read_documents
from ridgefit.corpus.store import TokenStore

__all__ = [
    "Document",
    "DocumentRecord",
    "Manifest",
    "TokenStore",
    "Window",
    "build_store",
    "read_documents",
    "template_doubles_bos",
]
