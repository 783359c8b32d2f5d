"""Secure aggregation: the server learns the sum of the sites' uploads and nothing else about them.

K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel, D. Ramage, A. Segal, K. Seth, "Practical
Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, Fig. 4, against a curious server that follows the
protocol. ``docs/decisions/0005-secure-aggregation.md`` lists the omissions and their reasons.
"""
