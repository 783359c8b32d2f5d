"""Attacks on the messages of a run: what a curious server or an eavesdropper can learn about a site's data.

An audit is a module with one :class:`~fedvisage.audit.finding.Audit`; :mod:`fedvisage.audit.audit` lists them. An audit
runs on a finished simulation, because only a simulation holds the ground truth that the attack is evaluated against.
"""
