"""Markup of a text: removed from the source, and put back into the translation.

One example, with the classes that hold it and the modules that make them:

    source          Open <b>{name} now</b>.
                                                        protecting
    `SourcePart`    <b>   {name}   </b>
    `Span`          <b> encloses "<ph_1> now", {name} is "<ph_1>"
    text            Open <ph_1> now.
                                                        a model
    translation     Jetzt <ph_1> öffnen.
                                                        aligning
    `Word`          Jetzt   <ph_1>   öffnen   .
    attends to      now     <ph_1>   Open     .
                                                        restoring
    target span     Jetzt   <ph_1>                      of <b>
    `Placed`        <b>   Jetzt   {name}   </b>   öffnen   .
                                                        joining
    result          <b>Jetzt {name}</b> öffnen.
"""

from keras_transformer.extras.markup.protecting import Protected, protect
from keras_transformer.extras.markup.restoring import restore

__all__ = ["Protected", "protect", "restore"]
