"""Runs a plan on real torch processes, and brings back the measured timelines."""
