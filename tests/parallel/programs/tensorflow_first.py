"""Import TensorFlow as our commands do, in half the time; the first import of other programs."""

from trainer import quiet

quiet.leave_out_what_keras_can_do_without()
quiet.import_tensorflow()
