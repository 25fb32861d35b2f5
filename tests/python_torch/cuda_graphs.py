"""CUDA graphs of calls."""

import torch


def capture(call):
    """A graph of the call and the results that it writes anew when it is replayed."""
    stream = torch.cuda.Stream()  # of the first call, which makes plans, as torch's documentation asks
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results
