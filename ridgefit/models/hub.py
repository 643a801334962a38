"""Files of the Hub: fetched or found in the cache, and one sentence where they are neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ridgefit.errors import BadInput


def fetched(name: str, revision: str | None, download: Callable[..., str]) -> Path:
    """What a download function of the Hub client returns for a model.

    Where the Hub does not answer, only the cache is asked: the client itself would try six times, for half
    a minute, before it looked there.

    Args:
        name: "org/name".
        revision: branch, tag or commit; None for the default branch.
        download: takes the name, and `revision` and `local_files_only` by keyword.

    Raises:
        BadInput: gated, unknown or unreachable, naming the model.
    """
    from huggingface_hub import errors

    try:
        return Path(download(name, revision=revision, local_files_only=not _answers(name, revision)))
    except errors.GatedRepoError as error:
        raise BadInput(
            f"the Hub model {name} is gated and this account has no access",
            f"accept its licence at https://huggingface.co/{name} and log in with `hf auth login`",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise BadInput(
            f"the Hub model {name} has no revision {revision!r}", "check the name after @"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise BadInput(
            f"the Hub has no public model {name!r}, and no such folder exists here",
            "check the name, or log in with `hf auth login` if the model is private",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise BadInput(
            f"the Hub model {name} is not on this machine, nor is a folder of that name, and the Hub "
            "cannot be reached",
            "connect, unset HF_HUB_OFFLINE, or give a local folder",
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise BadInput(f"the Hub model {name} could not be fetched ({line})", "try again") from error


def _answers(name: str, revision: str | None) -> bool:
    """Whether the Hub says anything about a model, a refusal included; it is asked once."""
    from huggingface_hub import HfApi, errors

    try:
        HfApi().model_info(name, revision=revision, timeout=10)
    except (errors.HfHubHTTPError, errors.HFValidationError):
        return True  # the download says what is wrong
    except Exception:  # every HTTP library that the client has used names its failures differently
        return False
    return True
