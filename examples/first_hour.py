# ---
# jupyter:
#   jupytext: { text_representation: { extension: .py, format_name: percent } }
#   kernelspec: { name: python3, display_name: Python 3, language: python }
# ---

# %% [markdown]
# # A first hour with nhood
#
# This notebook sees a neighborhood, denoises a photograph, trains a small model, and times itself, on one CPU core in about half a minute.
# It is `examples/first_hour.py`: a program as well, and a notebook for jupytext. `make notebook` runs it.

# %%
import time
from pathlib import Path

import nhood
import nhood.torch
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import image, pyplot
from nhood import models
from sklearn.datasets import load_digits

start = time.perf_counter()
torch.manual_seed(0)
torch.set_num_threads(1)  # all is small here: more threads cost more than they give
nhood.configure(threads=1)
print("nhood", nhood.version(), "on", nhood.devices()[0].description)

# %% [markdown]
# ## See a neighborhood
#
# Equal queries and keys give all keys of a window the same weight. If every token's value is a vector that has a 1 in its own place,
# then a query's result shows which tokens it attends.

# %%
side = 12
zeros = np.zeros((1, side, side, 1, 8), np.float32)
own_place = np.eye(side * side, dtype=np.float32).reshape(1, side, side, 1, side * side)


def attended(row, column, **window):
    out = nhood.na2d(zeros, zeros, own_place, kernel_size=5, **window)
    return out[0, row, column, 0].reshape(side, side) > 0


shown = {
    "in the middle": ((5, 6), {}),
    "at a border": ((0, 10), {}),
    "stride 3": ((4, 7), {"stride": 3}),
    "dilation 2": ((6, 6), {"dilation": 2}),
    "causal rows": ((7, 5), {"is_causal": (True, False)}),
    "periodic columns": ((5, 0), {"is_periodic": (False, True)}),
}
figure, panels = pyplot.subplots(1, len(shown), figsize=(12, 2.4), layout="constrained")
for panel, (title, (query, window)) in zip(panels, shown.items()):
    keys = attended(*query, **window)
    assert keys.sum() == 25 and keys[query]
    panel.imshow(keys + 1.0 * (np.arange(side * side).reshape(side, side) == query[0] * side + query[1]), cmap="Oranges")
    panel.set_title(title)
    panel.set_axis_off()
pyplot.show()

# %% [markdown]
# ## Denoise a photograph
#
# Every pixel looks for pixels of a similar surrounding within 21×21, and takes their mean: non-local means, as one call. Queries and keys
# are the surroundings' leading principal components f; with one more channel, [f, 1] and [f, −|f|²/2], their products are
# −|f − f′|²/2 up to what all keys of a query share. Nothing is trained. `examples/denoise` does better with second moments.

# %%
photograph = next(path for path in map(Path, ("examples/data", "data")) if path.exists()) / "astronaut.png"
clean = image.imread(photograph)[:256, 96:352, :3].astype(np.float32) * 255
noise = 25.0
noisy = clean + noise * np.random.default_rng(0).standard_normal(clean.shape).astype(np.float32)


def similarity(picture, components=8, around=2):
    """The leading principal components of the 5x5 pixels around each one."""
    padded = np.pad(picture, ((around, around), (around, around), (0, 0)), mode="reflect")
    patches = np.lib.stride_tricks.sliding_window_view(padded, (2 * around + 1, 2 * around + 1), axis=(0, 1))
    patches = patches.reshape(-1, patches[0, 0].size)
    patches = patches - patches.mean(axis=0)
    _, directions = np.linalg.eigh(patches.T @ patches)
    return (patches @ directions[:, -components:]).reshape(*picture.shape[:2], components)


features = similarity(noisy)
ones, norms = np.ones_like(features[..., :1]), (features**2).sum(axis=-1, keepdims=True)
query, key, value = (
    np.ascontiguousarray(each[None, :, :, None], np.float32)
    for each in (np.concatenate([features, ones], -1), np.concatenate([features, -norms / 2], -1), noisy)
)
before = time.perf_counter()
denoised = nhood.na2d(query, key, value, kernel_size=21, scale=2 / (20 * noise**2))[0, :, :, 0]
seconds = time.perf_counter() - before


def quality(picture):
    """Signal to noise in dB."""
    return 10 * np.log10(255**2 / np.mean((picture - clean) ** 2))


print(f"{quality(noisy):.2f} dB -> {quality(denoised):.2f} dB, attention over {clean[..., 0].size} pixels in {seconds:.3f} s")
assert quality(denoised) > quality(noisy) + 8
figure, panels = pyplot.subplots(1, 3, figsize=(12, 4.1), layout="constrained")
for panel, (title, picture) in zip(panels, {"clean": clean, "noisy": noisy, "denoised": denoised}.items()):
    panel.imshow(np.clip(picture, 0, 255).astype(np.uint8))
    panel.set_title(title)
    panel.set_axis_off()
pyplot.show()

# %% [markdown]
# ## Train a small NAT
#
# Scikit-learn's handwritten digits, 8×8 pixels, enlarged to 32×32, which makes 8×8 tokens. Windows are 3×3, with dilations of 1 and 2.
# `examples/train_digits.py` trains it longer, to more than 97 %.

# %%
digits = load_digits()
pictures = F.interpolate(torch.tensor(digits.images[:, None] / 16 - 0.5, dtype=torch.float32), scale_factor=4, mode="bilinear")
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels))
test, train = order[:360], order[360:]

model = models.NAT(32, 2, (2, 2), 2.0, kernel_size=3, dilations=(2, 1), in_channels=1, num_classes=10, drop_path_rate=0.0)
epochs, batch = 8, 32
steps = epochs * -(-len(train) // batch)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
losses = []
for _ in range(epochs):
    for chosen in train[torch.randperm(len(train))].split(batch):
        loss = F.cross_entropy(model(pictures[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())

model.eval()
with torch.no_grad():
    right = model(pictures[test]).argmax(dim=1) == labels[test]
print(f"{sum(p.numel() for p in model.parameters())} parameters, {steps} steps: {right.float().mean():.1%} of {len(test)} test images")
assert right.float().mean() > 0.85
pyplot.figure(figsize=(6, 2.6), layout="constrained")
pyplot.plot(losses)
pyplot.xlabel("step")
pyplot.ylabel("training loss")
pyplot.show()

# %% [markdown]
# ## Time it
#
# Beside torch's own attention, which gets the same windows as a mask over all keys; the results are compared first.

# %%
grid, heads, channels, window = 32, 4, 32, 7
query, key, value = torch.randn(3, 1, grid, grid, heads, channels)
start_of = (torch.arange(grid) - window // 2).clamp(0, grid - window)
inside = (torch.arange(grid) >= start_of[:, None]) & (torch.arange(grid) < start_of[:, None] + window)
mask = (inside[:, None, :, None] & inside[None, :, None, :]).reshape(grid * grid, grid * grid)


def by_nhood():
    return nhood.torch.na2d(query, key, value, kernel_size=window)


def by_mask():
    sequences = (each.flatten(1, 2).transpose(1, 2) for each in (query, key, value))
    return F.scaled_dot_product_attention(*sequences, attn_mask=mask).transpose(1, 2).view_as(query)


torch.testing.assert_close(by_nhood(), by_mask())


def milliseconds(call, turns=20):
    times = []
    for _ in range(turns):
        before = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - before))
    return sorted(times)[turns // 2]


with torch.no_grad():
    ours, masked = milliseconds(by_nhood), milliseconds(by_mask)
print(f"{grid}x{grid} tokens, window {window}x{window}: nhood {ours:.2f} ms, torch with a mask {masked:.2f} ms, {masked / ours:.0f} times as long")
print(f"this notebook took {time.perf_counter() - start:.0f} s")
