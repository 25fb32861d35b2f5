"""The NATTEN version whose calls are followed where versions disagree; _eras.select sets it."""

__version__ = "0.21.7"
