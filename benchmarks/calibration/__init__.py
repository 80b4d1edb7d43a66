"""How often the verdicts are wrong, on the simulator, where the truth is known.

`python -m benchmarks.calibration --help`; what it found is docs/calibration.md.
"""
