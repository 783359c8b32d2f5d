"""Steps at the papers' own sizes, against plain PyTorch in the order of work of the authors' released code.

The plain sides are written anew: channels first, everything passed again where the authors pass it again. A house that
only compares with its own layout at a small size does not see that it is slow where its users are.
"""
