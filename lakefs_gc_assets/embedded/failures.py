"""Failures that the server answers with a status and a message."""


class ApiFailure(Exception):
    """Answered as `{"message": …}` with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def not_found(what: str = "") -> ApiFailure:
    """404."""
    return ApiFailure(404, f"{what} not found".strip())


def bad_request(message: str) -> ApiFailure:
    """400."""
    return ApiFailure(400, message)
