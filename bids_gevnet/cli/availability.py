"""What the command line names but this version cannot do yet: said at once, never ignored."""

from bids_gevnet.cli.parser import Request
from bids_gevnet.errors import InputError

_SETTINGS = {
    "resource_monitor": "a record of time and memory of each node",
}


def refuse_missing_stages(request: Request) -> None:
    """Raise an `InputError` if the request needs a stage that is not there yet."""
    missing = [stage for name, stage in _SETTINGS.items() if name in request.given]
    if missing:
        raise InputError(
            expected="an option that this version supports",
            found=f"a request for {' and '.join(missing)}, which is still being built",
            remedy="leave the option out, or see CHANGELOG.md for the version that brings it",
        )
