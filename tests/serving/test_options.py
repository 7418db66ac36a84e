"""Options out of range are told of with their names."""

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "`replicas` must be a positive integer. Received: 0."),
        ({"port": 70000}, "`port` must be an integer of at least 0 and at most 65535"),
        ({"batch_wait_ms": -1.0}, "`batch_wait_ms` must be a number of at least 0"),
        ({"request_timeout": 0.0}, "`request_timeout` must be a number of at least 0.001"),
        ({"request_timeout": float("nan")}, "`request_timeout`"),
        ({"batch_wait_ms": float("inf")}, "`batch_wait_ms`"),
        ({"port": "8501"}, "`port`"),
        ({"replicas": True}, "`replicas`"),
        ({"replica": 2}, "There is no option `replica`. Did you mean `replicas`?"),
        ({"max_sentences": 500, "max_queue": 400}, "max_sentences=500, max_queue=400"),
        ({"name": "a/b"}, "`name`"),
    ],
)
def test_a_value_out_of_range_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        ServerOptions(**options)
    assert ServerOptions().max_sentences <= ServerOptions().max_queue
