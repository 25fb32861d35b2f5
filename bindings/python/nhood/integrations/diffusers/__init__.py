"""LTX-2's diffusion decoder of diffusers (0.42.1 or later) on nhood, on the CPU and on CUDA devices.

    from nhood.integrations.diffusers import use_nhood
    decoder = use_nhood(LTX2VideoDiffusionDecoderModel.from_pretrained(...))
    video = decoder.decode(latents).sample

The attention processor reads query, key and value where the model's projections left them: neither NATTEN nor a mask is
needed, and memory is taken for the result only. It is one operator to torch.compile. docs/models.md has an example and says
what tiles cost.
"""

from ... import torch as _  # noqa: F401, says what to install where there is no PyTorch
from ._processor import NhoodProcessor, use_nhood
from ._tiles import decode_in_tiles

__all__ = ["NhoodProcessor", "decode_in_tiles", "use_nhood"]
