"""The lab's judgement: what measured times carry, and what they do not. Needs NumPy and SciPy only."""
