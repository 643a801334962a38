"""Recall policies and their baselines against the dense model: needles, loss, retained attention."""
