"""What kind of device a tensor is on."""

from typing import Optional

import torch


def is_cuda(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.cuda is not None and torch.cuda.is_available()


def is_rocm(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is not None and torch.cuda.is_available()


def is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def get_device_cc(device: Optional[torch.device] = None) -> int:
    """Compute capability, 90 for 9.0; of the current CUDA device for None; 0 where there is no CUDA."""
    if not is_cuda(torch.device("cuda") if device is None else torch.device(device)):
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
