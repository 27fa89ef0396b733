"""Calibration: from what an engine logs, or from measured tables, to a step cost with honest error bars."""
