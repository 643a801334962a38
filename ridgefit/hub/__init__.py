"""Map repositories: built, judged, published, fetched and looked at."""

from __future__ import annotations
