"""A plugin of pytest: `--shard I/N` runs every N-th test, from the I-th on, so that N processes run them all."""


def pytest_addoption(parser):
    parser.addoption("--shard", required=True)


def pytest_collection_modifyitems(config, items):
    index, count = map(int, config.getoption("--shard").split("/"))
    items[:] = items[index::count]
