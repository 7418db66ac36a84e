"""Which process of pytest-xdist runs which tests, and how large a process grows."""

import ctypes
import gc
import os
import pathlib

import pytest

# TensorFlow frees no program that XLA has compiled: a process that has grown so large gets no more
# tests, and a new one takes its place. That costs ten seconds, which the last files are not worth.
MOST_MEGABYTES = 1900
LAST_FILES = 20
# By most files a process grows by less than half a gigabyte, by these by up to one: they come
# first, and begin in a process that is not larger.
LARGE = """
tests/test_kinds.py tests/engine/test_contract.py tests/engine/test_model_engine.py
tests/export/saved_model/test_signatures.py tests/training/test_resume.py
""".split()
MOST_MEGABYTES_OF_LARGE = 1400

# With several processes each file goes to one of them, the longest first, so that the processes end
# together.
LONGEST = [
    *LARGE,
    *"""
tests/extras/serving/ tests/training/test_killed.py
tests/extras/ tests/cli/test_learned_run.py tests/training/unit/test_lora.py
tests/engine/unit/test_scheduler.py tests/decoding/test_search.py tests/training/test_train.py
tests/models/test_effects.py tests/models/test_every_model.py tests/benchmarks/
tests/training/test_backends.py tests/export/saved_model/ tests/test_architecture.py
tests/export/ tests/cli/test_main.py tests/cli/test_demo.py
""".split(),
]


def index_of(nodeid):
    """A test's place in `LONGEST`, or the one after."""
    indices = (index for index, start in enumerate(LONGEST) if nodeid.startswith(start))
    return next(indices, len(LONGEST))


def megabytes_of(pid):
    """Memory of a process, 0 where the system does not tell."""
    try:
        pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return nodeid.split("::")[0]

        def _reschedule(self, node):
            if node not in self.registered_collections:
                return  # A new process, which still collects: it is given tests afterwards.
            work = self.assigned_work[node]
            is_done = work and self._pending_of(work) <= 2 and not node.shutting_down
            is_large = next(iter(self.workqueue), "") in LARGE
            most = MOST_MEGABYTES_OF_LARGE if is_large else MOST_MEGABYTES
            size = megabytes_of(node.gateway._rinfo().pid)
            if is_done and len(self.workqueue) > LAST_FILES and size > most:
                node.shutdown()  # once it has run the tests that it has already
                config.pluginmanager.getplugin("dsession")._clone_node(node)
            else:
                super()._reschedule(node)
                # A process begins a test when it knows the next one: one test alone would wait.
                while (
                    self.workqueue
                    and not node.shutting_down
                    and self._pending_of(self.assigned_work[node]) == 1
                ):
                    self._assign_work_unit(node)

    config.option.loadscopereorder = False  # not by the number of tests: in the order below
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes():
    # Without bytecode each process, and all that it starts, would compile thousands of modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.gateway.exit()  # Its memory is free at once, not when all tests have ended.


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: index_of(item.nodeid))


def pytest_collection_finish():
    # What importing and collecting made stays to the end, and tracing makes objects by the million:
    # by default all of them are searched for cycles again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


_COLLECTED = {"megabytes": 0}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    # Models and graphs are circles, and collections are rare: one after each 200 MB. What compilers
    # have freed is the system's only when it is asked to take it.
    if megabytes_of("self") > _COLLECTED["megabytes"] + 200:
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)
        _COLLECTED["megabytes"] = megabytes_of("self")
