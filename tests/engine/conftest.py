"""What the tests of engines share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_graphs(plain_graphs):
    """Graphs stand here for programs of XLA."""
