"""What a gallery refuses, as kinds that a service can tell apart; each is one line."""

from fedvisage.errors import RunFailed, UserError


class Unknown(UserError):
    """A collection, person or face that is not there."""


class Exists(UserError):
    """A name that is taken."""


class ModelChanged(UserError):
    """Templates of another model than the one that asks."""


class WrongKey(UserError):
    """A key that does not open the gallery."""


class NotEnrolled(UserError):
    """A picture that nobody is enrolled with: an attack, no face, two faces, too poor."""


class Busy(RunFailed):
    """Another process holds the file."""


class NoRoom(RunFailed):
    """The disk is full, or cannot be written."""
