# A thin front door: the real build is CMakeLists.txt with CMakePresets.json.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
BENCH ?= --suite bench/suites/cpu.txt
PHOTO ?= $(firstword $(wildcard examples/data/*.png))
MAKEFLAGS += --no-print-directory

# The limit only ends what hangs, also on a machine that is slow or busy.
CTEST = ctest --test-dir build --parallel $(JOBS) --timeout 3600 --output-on-failure --no-label-summary

VERSION = $(shell sed -n 's/^.define NHOOD_VERSION_[A-Z]* \([0-9]*\).*/\1/p' include/nhood.h | paste -sd.)

.PHONY: all demo test test-all test-core test-packages model-check bench performance hub notebook site install wheel wheels deb conda clean help

all:
	@command -v cmake >/dev/null || { echo "cmake is missing; as root, scripts/setup build installs what a build needs"; exit 1; }
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS)

# Without the tests, which take a third of a build.
demo:
	scripts/setup demo
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS) --target denoise nhood_tool
	build/denoise $(PHOTO) --sigma 25 --output build/demo

# The tests of nhood.torch take part where scripts/setup torch has been run: PyTorch alone is 6 GB. Those of nhood.jax are
# left to test-all.
test:
	scripts/setup test
	$(MAKE) all
	$(CTEST) -LE 'gpu|full|python_jax$(if $(wildcard build/venv-torch/bin/python),,|torch)'

test-all:
	scripts/setup test torch jax video packages
	$(MAKE) all
	$(CTEST) -LE 'gpu|sample'

test-core: all
	$(CTEST) -LE 'gpu|full|docs|python|torch|hub|install|emulator'

test-packages:
	scripts/setup test packages
	cmake --preset release
	$(CTEST) -L packages

model-check: all
	build/venv/bin/python bench/model/fit.py --check

bench: all
	build/nhood bench $(BENCH)

performance:
	python3 bench/report/performance.py report
	scripts/pictures --write

hub: all
	bindings/hub/make.py build/hub

notebook: all
	scripts/setup notebook
	docs/site/notebook build/notebook

site: all
	scripts/setup site
	docs/site/make build/site

# Without the tests, too. The loader finds a new library in /usr/local/lib by the list that ldconfig makes.
install:
	@command -v cmake >/dev/null || { echo "cmake is missing; as root, scripts/setup build installs what a build needs"; exit 1; }
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS) --target nhood nhood_tool nhood_completion
	cmake --install build --prefix $(PREFIX)
	@[ "$$(id -u)" -ne 0 ] || [ -n "$(DESTDIR)" ] || ldconfig
	@[ -n "$(DESTDIR)" ] || scripts/after-install build

wheel:
	scripts/setup wheel
	scripts/wheel

wheels:
	scripts/setup packages
	scripts/wheel x86_64 aarch64 windows sdist

deb:
	scripts/setup deb
	scripts/deb

conda:
	@command -v rattler-build >/dev/null || { echo "rattler-build is missing: conda install -c conda-forge rattler-build,"; \
	    echo "or pixi global install rattler-build; it also needs a channel with compilers, which conda-forge is by default"; exit 1; }
	NHOOD_VERSION=$(VERSION) rattler-build build --recipe packaging/conda --output-dir dist/conda

clean:
	rm -rf build

help:
	@echo "make                   build/nhood, the tool, and build/libnhood.so"
	@echo "make demo              install what is missing, build, denoise a photograph, or PHOTO=yours.png"
	@echo "make test              install what is missing, build, run what every change should pass"
	@echo "make test-all          every test that needs no GPU: PyTorch's and JAX's, too, all kernels emulated and compiled"
	@echo "make test-core         the tests that need neither Python nor a C++ compiler"
	@echo "make model-check       refit the model of time to the committed timings, compare, judge its choices (minutes)"
	@echo "make bench             time the problems of bench/suites/cpu.txt, or BENCH='--threads 1 <problem>'"
	@echo "make performance       write docs/performance.md, measurements.md, tables and pictures from the runs in bench/results"
	@echo "make hub               build/hub/natten and build/hub/nhood, for Hugging Face's kernels package"
	@echo "make notebook          build/notebook/first-hour.ipynb: examples/first_hour.py, executed; make site shows it"
	@echo "make site              the documents as a site, build/site/index.html"
	@echo "make install PREFIX=/usr/local"
	@echo "make wheel             dist/: what pip installs on this machine and others with its processor; needs a C compiler"
	@echo "make wheels            dist/: that for Linux (x86_64, aarch64) and Windows, and the source distribution"
	@echo "make deb               dist/: Debian packages of the library, its header, the tool and the Python package"
	@echo "make conda             dist/conda: conda packages; needs rattler-build"
	@echo "make test-packages     the packages, built, checked, installed and used"
	@echo "make clean             remove build/"
