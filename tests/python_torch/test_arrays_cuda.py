"""The numpy package on CUDA memory of others: torch's tensors behind a type that it does not know."""

import nhood
import nhood.torch as nt
import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class ByDlpack:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self.tensor.__dlpack__(**arguments)


class ByInterface:
    """On the stream that was current when the tensor was handed over."""

    def __init__(self, tensor):
        stream = torch.cuda.current_stream().cuda_stream or 1
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, "stream": stream}


def random(dtype):
    torch.manual_seed(0)
    return [torch.randn(2, 12, 12, 4, 32, device="cuda").to(dtype) for _ in "qkv"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", [ByDlpack, ByInterface])
def test_results_are_taken_over(kind, dtype):
    if kind is ByInterface and dtype == torch.bfloat16:
        pytest.skip("it has no type string")
    tensors = random(dtype)
    out = nhood.na2d(*map(kind, tensors), 5)
    expected = nt.na2d(*tensors, 5)
    taken = torch.from_dlpack(out)
    assert taken.data_ptr() == out.address
    if dtype != torch.bfloat16:
        assert torch.equal(torch.as_tensor(out, device="cuda"), expected)
    del out
    assert torch.equal(taken, expected)
    torch.cuda.synchronize()


@pytest.mark.parametrize("kind", [ByDlpack, ByInterface])
def test_inputs_are_waited_for(kind):
    tensors = random(torch.float32)
    expected = nt.na2d(*tensors, 5)
    stream, late = torch.cuda.Stream(), torch.empty_like(tensors[0])
    nhood.na2d(*map(ByDlpack, tensors), 5)  # plans are made
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # cycles; whoever does not wait reads `late` before it is written
        late.copy_(tensors[0])
        out = nhood.na2d(kind(late), *map(kind, tensors[1:]), 5)
        taken = torch.from_dlpack(out)
    stream.synchronize()
    assert torch.equal(taken, expected)


def test_tensors_themselves_belong_to_nhood_torch():
    with pytest.raises(ValueError, match="not in CPU memory; nhood.torch takes it"):
        nhood.na2d(*random(torch.float32), 5)
