"""How nhood_quick enqueues on CUDA devices: a copy of the module, told of tensors in CPU memory that they are on a device, hands
what it would enqueue to a function here."""

import ctypes
import importlib.machinery
import importlib.util
import shutil
import struct

import nhood
import nhood.torch
import pytest
import torch
from nhood import _library, _quick
from nhood.torch import _dispatch, _tensors

pytestmark = pytest.mark.skipif(
    _quick._module is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="nhood_quick is not built, or torch has no table of C functions for DLPack",
)
STREAM = 0x7F00_1234_5678


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("type", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


VIEW = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
EXECUTE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_library.Io))
EXECUTE_GROUP = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_library.GroupIo))


class Exchange(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("others", ctypes.c_void_p * 4), ("view", VIEW)]


class Device:
    """The copy of the module, and what it has enqueued."""

    def __init__(self, path):
        self.ordinals, self.enqueued, self.asked, self.status = {}, [], [], 0
        self.kept = []  # memory that C refers to
        loader = importlib.machinery.ExtensionFileLoader("nhood_quick", str(path))
        self.module = importlib.util.module_from_spec(importlib.util.spec_from_loader("nhood_quick", loader))
        loader.exec_module(self.module)
        execute, group, exchange = EXECUTE(self.execute), EXECUTE_GROUP(self.execute_group), Exchange((1, 0), (None,) * 4, VIEW(self.view))
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (execute, group)]
        assert self.module.start((*addresses, 0, 0), object.__basicsize__, self.check)
        samples, plain = tuple(_dispatch._samples()), tuple(_dispatch._PLAIN_TENSORS)
        assert self.module.learn_keys(torch.Tensor, torch.Tensor.__basicsize__, samples, plain, torch.is_grad_enabled)
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsule = new_capsule(ctypes.addressof(exchange), b"dlpack_exchange_api", None)
        tried = torch.zeros(2, 3)
        self.kept += [execute, group, exchange, capsule, tried]
        assert self.module.add_type(tried, capsule, tried.data_ptr(), (2, 3), (3, 1))

    def view(self, tensor, view):
        extents = [(ctypes.c_int64 * tensor.dim())(*numbers) for numbers in (tensor.shape, tensor.stride())]
        self.kept.append(extents)
        ordinal = self.ordinals.get(tensor.data_ptr(), -1)
        device = (1, 0) if ordinal < 0 else (2, ordinal)
        code = 2 if tensor.is_floating_point() else 0  # DLPack's, below the bits and the lanes
        kind = code | 8 * tensor.element_size() << 8 | 1 << 16
        view[0] = DLTensor(tensor.data_ptr(), *device, tensor.dim(), kind, *extents, 0)
        return 0

    def execute(self, plan, io):
        self.enqueued.append((plan, list(io[0].data), io[0].workspace, io[0].workspace_bytes, io[0].stream))
        return self.status

    def execute_group(self, plan, io):
        """A member is the addresses of its tensors, by slot."""
        members = ctypes.cast(io[0].member, ctypes.POINTER(_library.Io))
        assert all([members[i].struct_size == ctypes.sizeof(_library.Io) for i in range(io[0].count)])
        addresses = [{slot: at for slot, at in enumerate(members[i].data) if at} for i in range(io[0].count)]
        self.enqueued.append((plan, addresses, io[0].workspace, io[0].workspace_bytes, io[0].stream))
        return self.status

    def check(self, status):
        raise RuntimeError(f"status {status}")

    def empty(self, *shape, ordinal=0, dtype=torch.bfloat16):
        tensor = torch.empty(shape, dtype=dtype)
        self.ordinals[tensor.data_ptr()] = ordinal
        self.kept.append(tensor)
        return tensor

    def stream(self, ordinal):
        self.asked.append(ordinal)
        return STREAM

    def remember(self, arguments, slots, makers, workspace_bytes=0, setting=None, contents=(), group=None):
        workspace = (lambda: self.empty(workspace_bytes, dtype=torch.uint8), ()) if workspace_bytes else None
        launch = _quick.Launch(self.stream, workspace, setting, setting and setting())
        self.module.remember(0, arguments, (), self, 77, workspace_bytes, slots, tuple(makers), launch, contents, group)


@pytest.fixture
def device(tmp_path):
    path = tmp_path / _quick._FILE
    shutil.copy(_library.path.with_name(_quick._FILE), path)
    device = Device(path)
    yield device
    device.module.forget()


def addresses(enqueued):
    return {slot: address for slot, address in enumerate(enqueued[1]) if address}


def test_a_call_is_enqueued_on_the_stream_of_its_device(device):
    query, key = device.empty(2, 4, ordinal=1), device.empty(2, 4, ordinal=1)
    device.remember(("na", 3, query, key), (0, 1, 5), [(lambda: device.empty(2, 4, ordinal=1), ())])
    other = device.empty(2, 4, ordinal=1)
    result = device.module.call("na", 3, other, key)
    assert device.asked == [1]
    (enqueued,) = device.enqueued
    assert enqueued[0] == 77 and enqueued[2:] == (None, 0, STREAM)
    assert addresses(enqueued) == {0: other.data_ptr(), 1: key.data_ptr(), 5: result.data_ptr()}


def test_a_workspace_is_made_by_torch(device):
    query = device.empty(2, 4)
    device.remember(("na", query), (0, 5), [(lambda: device.empty(2, 4), ())], workspace_bytes=1000)
    for _ in range(2):
        device.module.call("na", query)
    workspaces = [enqueued[2:4] for enqueued in device.enqueued]
    assert all([size == 1000 for _, size in workspaces])
    assert len({address for address, _ in workspaces} & set(device.ordinals)) == 2


def test_what_differs_is_not_taken_for_it(device):
    memory = device.empty(64)
    query = memory[:8].view(2, 4)
    device.remember(("na", query), (0, 5), [(lambda: device.empty(2, 4), ())])
    for ordinal in (1, -1):
        assert device.module.call("na", device.empty(2, 4, ordinal=ordinal)) is None
    for start, aligned in ((1, False), (8, True), (4, False)):
        moved = memory[start : start + 8].view(2, 4)
        device.ordinals[moved.data_ptr()] = 0
        assert (moved.data_ptr() % 16 == 0) == aligned
        assert (device.module.call("na", moved) is not None) == aligned
    device.remember(("na", moved), (0, 5), [(lambda: device.empty(2, 4), ())])
    assert device.module.call("na", moved) is not None
    assert device.module.call("na", query) is not None


def test_a_group_is_enqueued_by_its_members(device):
    """A table in CPU memory counts by what it holds, and is none of the tensors."""
    query, table = device.empty(8, 4), torch.tensor([[0, 3], [3, 5]])
    maker = (lambda: device.empty(8, 2), ())
    offsets = struct.pack("4q", 0, 0, 24, 12)  # of query and result
    device.remember(("group", query, table), (0, 5), [maker], workspace_bytes=64, contents=(2,), group=(2, offsets))
    other = device.empty(8, 4)
    for same in (table, table.clone()):
        device.enqueued.clear()
        result = device.module.call("group", other, same)
        ((plan, members, _, size, stream),) = device.enqueued
        assert (plan, size, stream) == (77, 64, STREAM)
        first = {0: other.data_ptr(), 5: result.data_ptr()}
        assert members == [first, {0: first[0] + 24, 5: first[5] + 12}]
    for another in (table + 1, table.T, table[:, :1], table.int(), table.to(torch.float64), query):
        assert device.module.call("group", other, another) is None
    table[1, 1] = 4
    assert device.module.call("group", other, table) is None
    table[1, 1] = 5
    assert device.module.call("group", other, table) is not None


def test_a_group_is_enqueued_once(device):
    """Without being remembered."""
    query, key = device.empty(8, 4), device.empty(8, 4)
    launch = _quick.Launch(device.stream, (lambda: device.empty(64, dtype=torch.uint8), ()), None, None)
    makers, offsets = ((lambda: device.empty(8, 2), ()),), struct.pack("6q", 0, 0, 0, 24, 4, 12)

    def run(*arrays, slots=(0, 1, 5), offsets=offsets):
        return device.module.run_group(device, 77, 64, slots, makers, launch, 2, offsets, arrays)

    result = run(query, key)
    ((plan, members, _, size, stream),) = device.enqueued
    assert (plan, size, stream) == (77, 64, STREAM)
    first = {0: query.data_ptr(), 1: key.data_ptr(), 5: result.data_ptr()}
    assert members == [first, {0: first[0] + 24, 1: first[1] + 4, 5: first[5] + 12}]
    device.enqueued.clear()
    for nothing in (run(query), run(query, 3), run(query, key, slots=(0, 1)), run(query, key, offsets=offsets[8:]), run(query, torch._neg_view(key))):
        assert nothing is None
    assert not device.enqueued
    device.status = -4
    with pytest.raises(RuntimeError, match="status -4"):
        run(query, key)


def test_what_is_no_group_is_not_remembered(device):
    query, table = device.empty(8, 4), torch.tensor([[0, 3], [3, 5]])
    maker = (lambda: device.empty(8, 2), ())
    right = {"contents": (2,), "group": (2, bytes(32))}
    for wrong in ({"group": (2, bytes(24))}, {"group": (-1, bytes(32))}, {"contents": ()}, {"contents": (1,)}, {"contents": (3,)}):
        device.remember(("group", query, table), (0, 5), [maker], **{**right, **wrong})
        assert device.module.call("group", query, table) is None
    for moved in (table.T, table.int(), 3):
        device.remember(("group", query, moved), (0, 5), [maker], **right)
        assert device.module.call("group", query, moved) is None
    device.remember(("group", query, table), (0, 5), [maker], **right)
    assert device.module.call("group", query, table) is not None


def test_devices_are_not_mixed(device):
    query, key = device.empty(2, 4, ordinal=0), device.empty(2, 4, ordinal=1)
    device.remember(("na", query, key), (0, 1, 5), [(lambda: device.empty(2, 4), ())])
    assert device.module.call("na", query, key) is None
    device.remember(("na", query), (0, 5), [(lambda: device.empty(2, 4, ordinal=1), ())])
    with pytest.raises(RuntimeError, match="no array in memory of its device"):
        device.module.call("na", query)
    assert not device.enqueued


def test_a_setting_applies(device):
    allowed = [True]
    query = device.empty(2, 4, dtype=torch.float32)
    maker = (lambda: device.empty(2, 4), ())
    device.remember(("na", query), (0, 5), [maker], setting=lambda: allowed[0])
    assert device.module.call("na", query) is not None
    allowed[0] = False
    assert device.module.call("na", query) is None
    allowed[0] = True
    assert device.module.call("na", query) is not None


def test_errors_are_raised(device):
    query = device.empty(2, 4)
    device.remember(("na", query), (0, 5), [(lambda: device.empty(2, 4), ())])
    device.status = -4
    with pytest.raises(RuntimeError, match="status -4"):
        device.module.call("na", query)

    def no_stream(ordinal):
        raise ValueError("no stream")

    device.stream = no_stream
    device.remember(("na", query, 1), (0, 5), [(lambda: device.empty(2, 4), ())])
    device.enqueued.clear()
    with pytest.raises(ValueError, match="no stream"):
        device.module.call("na", query, 1)
    assert not device.enqueued


def test_a_plan_of_a_device_needs_a_launch(device):
    query = device.empty(2, 4)
    device.module.remember(0, ("na", query), (), device, 77, 0, (0, 5), ((lambda: query, ()),), None, (), None)
    assert device.module.call("na", query) is None


@pytest.mark.parametrize("dtype, has_setting", [(torch.float32, True), (torch.bfloat16, False), (torch.float64, False)])
def test_launches_know_what_plans_depend_on(dtype, has_setting):
    launch = _tensors._launch(64, dtype, torch.device("cpu"))
    assert (launch.setting is _tensors.tf32_allowed) == has_setting
    assert launch.expected is (_tensors.tf32_allowed() if has_setting else None)
    make, arguments = launch.workspace
    assert make(*arguments).numel() == 64 and _tensors._launch(0, dtype, torch.device("cpu")).workspace is None
