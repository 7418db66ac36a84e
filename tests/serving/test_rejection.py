"""An error's answer on its way from a replica to the client."""

import pickle

import pytest

from keras_transformer.serving.rejection import Rejection


def test_it_comes_out_of_a_pickle_as_it_went_in():
    received = pickle.loads(pickle.dumps(Rejection(503, "it died", "replica")))
    assert type(received) is Rejection
    assert vars(received) == {"status": 503, "message": "it died", "reason": "replica"}
    assert str(received) == "it died"


@pytest.mark.parametrize(("given", "reason"), [((), "413"), (("length",), "length")])
def test_the_reason_is_the_status_unless_it_has_a_name(given, reason):
    assert Rejection(413, "too long", *given).reason == reason
