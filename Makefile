# Without a ROS 2 installation: everything goes into .venv and build/. With one, use colcon build.
VENV ?= .venv
OUT ?= out
PYTHON_IN_VENV = $(VENV)/bin/python
STAMPS = $(VENV)/.stamps
JOBS ?= $(shell nproc)

# What is built or copied into the environment. Python sources and data files are linked, so an edit counts at once.
BUILT = CMakeLists.txt package.xml ros_setup.cfg $(wildcard msg/*.msg) cmake/realsimloop.in cmake/pip_ros_compat.cmake \
  cmake/build_package.sh cmake/link_sources.py
REQUIREMENTS = requirements.txt requirements-ros.txt requirements-build.txt
PIP_INSTALL = $(PYTHON_IN_VENV) -m pip install -q -c constraints.txt

export AMENT_PREFIX_PATH = $(abspath $(VENV))
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help setup segmentation demo test bench faults coverage studies estimators ablation ablation-integration lint format clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

setup: $(STAMPS)/package ## make the environment: packages, ROS wheels, messages

# The +cpu wheel leaves out the CUDA packages; it lies in an index of its own, which PyTorch's installation page names:
# make segmentation TORCH_INDEX=... With a GPU, install torch as that page says instead. sam2 names
# torchvision and builds against the torch of the package index, though its tracking needs neither.
segmentation: setup ## add SAM 2 (torch for the CPU, sam2), which masks images where a cell file says so
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r requirements-segmentation.txt
	SAM2_BUILD_CUDA=0 $(PIP_INSTALL) --no-deps --no-build-isolation sam2==1.1.0

demo: setup ## run the dual-arm cell as separate processes and write out/demo/report.html
	$(VENV)/bin/realsimloop demo --out $(OUT)/demo

test: setup $(STAMPS)/checks ## run the tests
	$(PYTHON_IN_VENV) -m pytest

bench: setup ## time full order beside reduced, then adaptation in real time, then sweep over models (hours; resumes)
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.bench
	$(PYTHON_IN_VENV) -m realsimloop_ros.nodes.adaptation_bench
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.model_judgement
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.reduction_sweep --docs docs

faults: setup ## put each fault into a recording of the dual-arm cell, and write docs/faults.md
	[ -d $(OUT)/demo/bag ] || $(VENV)/bin/realsimloop demo --out $(OUT)/demo
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.fault_study $(OUT)/demo/bag --docs docs

coverage: setup ## how often the truth lies in the stated interval, over 100 seeds; write docs/coverage.md
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.study_commands coverage --workers $(JOBS)

studies: setup ## wrong starts, two zones, a changing material, what cannot be told; write docs/studies.md
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.study_commands studies

estimators: setup ## the online estimator beside offline, CMA-ES and annealing; write docs/estimators.md
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.method_comparison

ablation: setup ## what window, noise, forgetting and online work are worth; write docs/ablation.md
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.study_commands ablation

ablation-integration: setup ## compare four time integrators on a swinging beam, and write docs/integrators.md
	$(PYTHON_IN_VENV) -m realsimloop_ros.evaluation.integration_ablation --out $(OUT)/bench --docs docs

lint: setup $(STAMPS)/checks ## style, format, types, order of the parts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: setup $(STAMPS)/checks ## put the sources into the format that lint wants
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean: ## remove what was built and the environment
	rm -rf build install log $(OUT) $(VENV)

$(STAMPS)/venv: cmake/check_tools.sh cmake/find_python.sh
	@cmake/check_tools.sh
	@python=$$(cmake/find_python.sh) && { [ -x $(PYTHON_IN_VENV) ] || $$python -m venv $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/wheels: constraints.txt $(REQUIREMENTS) | $(STAMPS)/venv
	$(PIP_INSTALL) $(addprefix -r ,$(REQUIREMENTS))
	@touch $@

$(STAMPS)/checks: requirements-dev.txt $(STAMPS)/wheels
	$(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

$(STAMPS)/tf2_msgs: cmake/build_tf2_msgs.py cmake/pip_ros_compat.cmake $(STAMPS)/wheels
	@mkdir -p build
	$(PYTHON_IN_VENV) cmake/build_tf2_msgs.py build/tf2_msgs > build/tf2_msgs.log 2>&1 || { cat build/tf2_msgs.log; exit 1; }
	@touch $@

$(STAMPS)/package: $(BUILT) $(STAMPS)/tf2_msgs
	@mkdir -p build
	cmake/build_package.sh $(VENV) $(JOBS) > build/package.log 2>&1 || { cat build/package.log; exit 1; }
	@touch $@
