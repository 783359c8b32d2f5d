"""Methods for presentation attack detection, one file per method."""
