"""The regularizers in the training loops of other libraries; each module needs the library that it is named after."""
