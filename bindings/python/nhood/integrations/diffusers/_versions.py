"""diffusers' module of the decoder, or a text that says why there is none."""

from __future__ import annotations

import re
from types import ModuleType

OLDEST = (0, 42, 1)
"""The first that has the decoder and its processors as they are taken here."""
TAKEN = {
    "LTX2VideoVaeNeighborhoodAttention": ("project_qkv", "set_processor"),
    "LTX2VideoDiffusionDecoder3d": ("forward_stages_1_to_3", "denoise"),
    "LTX2VideoDiffusionDecoderModel": ("enable_tiling", "tiled_decode"),
}
"""What is called, and what is replaced, of the module's classes."""


def _import_decoder() -> ModuleType:
    try:
        import diffusers
    except ImportError as error:
        raise ImportError(
            "nhood.integrations.diffusers needs diffusers 0.42.1 or later: pip install 'diffusers>=0.42.1'"
        ) from error
    # A development version of 0.42.1 is 0.42.1.dev0.
    version = tuple(map(int, re.findall(r"\d+", diffusers.__version__)[:3]))
    if version < OLDEST:
        raise ImportError(
            f"nhood.integrations.diffusers needs diffusers 0.42.1 or later; {diffusers.__version__} is installed"
        )
    try:
        from diffusers.models.autoencoders import ltx2_diffusion_decoder

        for owner, names in TAKEN.items():
            for name in names:
                getattr(getattr(ltx2_diffusion_decoder, owner), name)
        return ltx2_diffusion_decoder
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"diffusers {diffusers.__version__} does not have LTX-2's diffusion decoder as "
            f"nhood.integrations.diffusers knows it from 0.42.1: {error}"
        ) from error


ltx2 = _import_decoder()
