"""Methods for face recognition, one file per method."""
