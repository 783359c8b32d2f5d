"""Tasks: presentation attack detection (``pad``) and face recognition, behind one interface."""
