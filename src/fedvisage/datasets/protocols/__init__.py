"""Published protocols: which part of which dataset trains and which is judged, one family per file."""
