"""Secure aggregation: the server learns the sum of what the sites send, and nothing else of it.

K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel, D. Ramage, A. Segal, K. Seth, "Practical
Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, Fig. 4, against a server that follows the
protocol but is curious. ``docs/decisions/0005-secure-aggregation.md`` says what is left out and why.
"""
