"""The lab: measures every backend side by side, and says only what the measurement carries.

It uses onepass's public names only, and onepass never imports it.
"""
