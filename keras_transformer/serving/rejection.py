"""An answer that is an error."""


class Rejection(Exception):
    """A request that is not answered with a result: its HTTP status and one clear line.

    Args:
        status: HTTP status code.
        message: What is told to the client.
        reason: Short name for the metrics, by default the status itself.
    """

    def __init__(self, status, message, reason=None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or str(status)

    def __reduce__(self):
        return type(self), (self.status, self.message, self.reason)
