"""Decoding: one compiled loop on `keras.ops`, its strategies and constraints.

Keras is imported with the first name that needs it: `DecodingOptions` does without.

Shapes in this folder name their axes. A comment `# --> [batch, beams]` is the shape of the line's
result:

- `batch`: sentences
- `beams`: unfinished hypotheses of a sentence; 1 in greedy search
- `samples` or `num_samples`: the beams of sampling
- `n_best`: hypotheses of a sentence that a search returns
- `vocabulary`: tokens with a logit, or the candidates of a shortlist
- `capacity` or `max_length`: tokens that a hypothesis may have
- `source`, `target`, `prefix`: tokens of a source, of a given target, of a target prefix
- `2 * beams`, `extensions`: extensions of a sentence's hypotheses by one token
- `count`, `chosen`: the length of a list that the docstring explains
- `phrases`, `length`: phrases of a sentence, and tokens of a phrase or a row
- `rows`, `hypotheses`: what `batch` and `beams` are, in functions that know no search
- `blocks`, `size`, `pieces`, `columns`: divisions of a long row
"""

from typing import TYPE_CHECKING

from keras_transformer.base.imports import lazy_names

if TYPE_CHECKING:
    from keras_transformer.decoding.beam import Beam as Beam
    from keras_transformer.decoding.constrained_beam import ConstrainedBeam as ConstrainedBeam
    from keras_transformer.decoding.constraints import Constraints as Constraints
    from keras_transformer.decoding.loop import decode as decode
    from keras_transformer.decoding.ranking import GNMTRanking as GNMTRanking
    from keras_transformer.decoding.ranking import LengthRanking as LengthRanking
    from keras_transformer.decoding.ranking import MarianRanking as MarianRanking
    from keras_transformer.decoding.ranking import length_penalty as length_penalty
    from keras_transformer.decoding.results import Hypotheses as Hypotheses
    from keras_transformer.decoding.sampling import Greedy as Greedy
    from keras_transformer.decoding.sampling import Sampling as Sampling
    from keras_transformer.decoding.search import SearchModel as SearchModel
    from keras_transformer.decoding.search_options import DecodingOptions as DecodingOptions

_MODULES = {
    "Beam": "beam",
    "ConstrainedBeam": "constrained_beam",
    "Constraints": "constraints",
    "DecodingOptions": "search_options",
    "GNMTRanking": "ranking",
    "Greedy": "sampling",
    "Hypotheses": "results",
    "LengthRanking": "ranking",
    "MarianRanking": "ranking",
    "Sampling": "sampling",
    "SearchModel": "search",
    "decode": "loop",
    "length_penalty": "ranking",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
